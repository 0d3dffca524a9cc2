"""The chat tab: streamed answers with stop, retry, undo, edit and clear.

One event serves every way to ask; Stop, undo and clear cancel it.
"""

import html
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import gradio as gr

from hfjax_app.api.chat import EVENT, ChatApi
from hfjax_app.api.gradio_errors import errors_shown, streamed
from hfjax_app.chat import SamplingParams
from hfjax_app.errors import RequestRejected
from hfjax_app.studio.event_options import UNPROCESSED, UNQUEUED_UNPROCESSED
from hfjax_app.studio.loading_panel import LoadingPanel
from hfjax_app.studio.markdown import LATEX_DELIMITERS, as_typed
from hfjax_app.studio.seed import typed_seed
from hfjax_app.studio.session_storage import store
from hfjax_app.studio.tab import Shared, Tab
from hfjax_app.studio.transcript import Message, note, position, read, stopped
from hfjax_app.studio.updates import update_after

if TYPE_CHECKING:
    from hfjax_app.chat.interface import ChatModel

# The time between two redraws of an answer is REDRAW_S times the number of pages with a growing answer, at most
# MAX_REDRAW_S. A redraw takes server time from other visitors and 15 ms in the browser; with more redraws a page falls
# behind fast models. A redraw is also when the server notices that a page was closed.
REDRAW_S = 0.1
MAX_REDRAW_S = 0.8
EXAMPLES = [
    "What is JAX?",
    "My name is Ada. What can you do?",
    "Tell me a short story about a fox.",
    "What is 17 plus 25?",
]


class ChatTab(Tab):
    """Conversations with the chat model."""

    title, id = "Chat", "chat"

    def __init__(self, shared: Shared):
        self._api = api = shared.endpoints.of(ChatApi)
        backend, context = shared.backends.chat, shared.backends.settings.context
        self._growing = 0  # answers that grow at the moment; only touched on the event loop
        self.loading = LoadingPanel(shared.backends.chat_models)
        name = backend.name
        with self.loading.panel:
            self._chatbot = gr.Chatbot(
                label="Conversation",
                show_label=False,
                container=False,
                height="max(340px, calc(100dvh - 390px))",
                layout="bubble",
                editable="user",
                buttons=["copy"],
                latex_delimiters=LATEX_DELIMITERS,
                placeholder=f"<h3>{name}</h3>Ask something, or pick a question.",
                examples=[{"text": example} for example in EXAMPLES],
                elem_id="conversation",
            )
            self._notices = gr.HTML(visible=False, elem_id="chat-notices")
            self._textbox = gr.Textbox(
                "",
                label="Message",
                show_label=False,
                container=False,
                placeholder="Type a message",
                lines=1,
                max_lines=8,
                submit_btn=True,
                elem_id="message",
            )
            with gr.Accordion("Settings", open=False, elem_id="chat-settings"):
                system_prompt = gr.Textbox(
                    "",
                    label="System prompt",
                    placeholder="Instructions for the model",
                    lines=2,
                    elem_id="system-prompt",
                )
                defaults = SamplingParams()
                with gr.Row():
                    max_tokens = gr.Slider(1, context, api.max_tokens, step=1, label="Max tokens", elem_id="max-tokens")
                    temperature = gr.Slider(
                        0, 2, defaults.temperature, step=0.05, label="Temperature", elem_id="temperature"
                    )
                with gr.Row():
                    top_p = gr.Slider(0.05, 1, defaults.top_p, step=0.05, label="Top-p", elem_id="top-p")
                    top_k = gr.Slider(0, 200, defaults.top_k, step=1, label="Top-k (0: all)", elem_id="top-k")
                    min_p = gr.Slider(0, 0.5, defaults.min_p, step=0.01, label="Min-p (0: all)", elem_id="min-p")
                with gr.Row():
                    repetition_penalty = gr.Slider(
                        1,
                        2,
                        defaults.repetition_penalty,
                        step=0.05,
                        label="Repetition penalty (1: none)",
                        elem_id="repetition-penalty",
                    )
                    seed = gr.Textbox("", label="Seed", placeholder="random", max_lines=1, elem_id="chat-seed")
        self._sampling = {
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
        }
        self.loading.fill([self._notices, *self._sampling.values()], self._of_model)
        self._wire([system_prompt, max_tokens, temperature, top_p, top_k, seed, min_p, repetition_penalty])

    def _of_model(self, assistant: "ChatModel") -> list[Any]:
        """What is to be known about the model, and the sampling parameters that it recommends."""
        lines = "".join(f"<p>{html.escape(notice)}</p>" for notice in assistant.notices)
        sliders = []
        for name, slider in self._sampling.items():
            value = getattr(assistant.recommended, name)
            low, high = min(slider.minimum, value), max(slider.maximum, value)
            sliders.append(gr.Slider(minimum=low, maximum=high, value=value))
        return [gr.HTML(lines, visible=bool(lines)), *sliders]

    def store(self, page: gr.Blocks) -> None:
        """The conversation outlives a reload of the page."""
        store(page, self._chatbot, self._restored, [self._chatbot])

    def _wire(self, options: list[gr.components.Component]) -> None:
        chatbot, textbox = self._chatbot, self._textbox
        outputs = [chatbot, textbox]
        # one event for every way to ask, so that a page never runs two at once
        asking = gr.on(
            [textbox.submit, chatbot.retry, chatbot.edit, chatbot.example_select],
            self._ask,
            [textbox, chatbot, *options],
            outputs,
            **UNPROCESSED,
            **EVENT,
        )
        # after the event, because the page ignores the next question until then
        update_after(asking, [textbox], [_idle()])
        # the update follows the cancellation, or a late piece of the answer would overwrite it
        for end, then, inputs in (
            (textbox.stop, self._stopped, [chatbot]),
            (chatbot.undo, self._undo, [chatbot]),
            (chatbot.clear, lambda: ([], _idle()), []),
        ):
            cancel = end(None, cancels=asking, queue=False, api_visibility="private")
            cancel.then(then, inputs, outputs, **UNQUEUED_UNPROCESSED)

    @streamed
    def _ask(self, event: gr.EventData, typed: object, history: object, *options: Any) -> AsyncGenerator[Any, None]:
        """A question that was typed, asked again (retry), rewritten (edit), or picked from the examples."""
        messages = read(history)
        match event._data or {}:
            case {"previous_value": _, "index": index, "value": text}:
                return self._answer(messages[: position(index, history)], text, options)
            case {"value": {"text": text}}:
                return self._answer(messages, text, options)
            case {"index": index}:
                question = _last_question(messages, position(index, history))
                return self._answer(messages[:question], messages[question].text, options)
        return self._answer(messages, typed, options)

    def _undo(self, history: object) -> list[Any]:
        with errors_shown():
            messages = read(history)
            question = _last_question(messages, len(messages) - 1)
            return [_shown(messages[:question]), _idle(messages[question].text)]

    def _stopped(self, history: object) -> list[Any]:
        with errors_shown():
            messages = read(history)
            if messages and messages[-1].role == "assistant":
                messages[-1] = stopped(messages[-1])
            return [_shown(messages), _idle()]

    def _restored(self, history: object) -> Any:
        """The conversation from before a reload. The reload ended an answer that was growing."""
        if history is None:
            return gr.skip()
        try:
            messages = read(history)
        except RequestRejected:
            return []
        return _shown([stopped(message) if message.is_growing else message for message in messages])

    async def _answer(
        self, before: list[Message], text: Any, options: tuple[Any, ...]
    ) -> AsyncGenerator[list[Any], None]:
        """Ask `text` after the messages `before`, and stream new values of the chatbot and the text box.

        The text box is emptied only after the assistant has accepted the question.

        Raises:
            RequestRejected: before the first item.
            EngineStopped: at any time; the part of the answer that was yielded stays on the page.
        """
        messages = [*before, Message(role="user", text=as_typed(text) if isinstance(text, str) else text)]
        drawn_at = 0.0
        *first_options, seed, min_p, repetition_penalty = options
        conversation = [message.to_assistant() for message in messages]
        replies = self._api.replies(conversation, *first_options, typed_seed(seed), min_p, repetition_penalty)
        self._growing += 1
        try:
            async with aclosing(replies):
                box = gr.Textbox("", submit_btn=False, stop_btn=True)
                async for reply in replies:
                    pause = min(self._growing * REDRAW_S, MAX_REDRAW_S)
                    if reply.finish_reason is None and time.monotonic() < drawn_at + pause:
                        continue
                    answer = Message(
                        role="assistant",
                        text=reply.text,
                        note=note(reply),
                        reasoning=reply.reasoning,
                        reasoning_s=reply.reasoning_s,
                        is_reasoning=reply.is_reasoning,
                    )
                    yield [_shown([*messages, answer]), box]
                    box, drawn_at = gr.skip(), time.monotonic()
        finally:
            self._growing -= 1


def _shown(messages: list[Message]) -> list[dict[str, object]]:
    return [entry for message in messages for entry in message.to_page()]


def _idle(text: str | None = None) -> dict[str, Any]:
    """The text box when no answer grows: Enter sends. Without a text, the box keeps its content."""
    value = {} if text is None else {"value": text}
    return {**gr.update(submit_btn=True, stop_btn=False), **value}


def _last_question(messages: list[Message], at: int) -> int:
    """The index of the user's message at or before the index `at`."""
    for index in range(min(at, len(messages) - 1), -1, -1):
        if messages[index].role == "user":
            return index
    raise RequestRejected("there is no question to go back to: type one")
