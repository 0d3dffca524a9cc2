"""The chat tab: streamed answers with stop, retry, undo, edit and versions.

One event serves every way to ask; Stop and a new chat cancel it. What a page does without the model (the list of
conversations, versions of an answer, drafts, presets) is done by its scripts (assets/chat_*.js), which the bridge joins
to this class.
"""

import asyncio
import html
import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from hfjax_app.api.chat import EVENT
from hfjax_app.api.gradio_errors import errors_shown, streamed
from hfjax_app.backends import Backend
from hfjax_app.chat.interface import ChatModel
from hfjax_app.client import sender
from hfjax_app.errors import RequestRejected
from hfjax_app.limits import CHAT_MAX_CONVERSATION_CHARACTERS, CHAT_MAX_MESSAGES
from hfjax_app.runtime.seams.gradio import details_of
from hfjax_app.studio.chat_screen import ATTACHED, BRIDGE_JS, HEAD, HEAD_START, HINT, LEFT, UNDER_BOX, hello
from hfjax_app.studio.chat_settings import ChatSettings
from hfjax_app.studio.loading_panel import LoadingPanel
from hfjax_app.studio.markdown import LATEX_DELIMITERS, as_typed
from hfjax_app.studio.model_loader import ModelLoader
from hfjax_app.studio.model_picker import ModelPicker
from hfjax_app.studio.tab import UNPROCESSED, UNQUEUED, UNQUEUED_UNPROCESSED, Shared, Tab, update_after
from hfjax_app.studio.transcript import PageMessage, attached, note, position, read

# The time between two redraws of an answer is REDRAW_S times the number of pages with a growing answer, at most
# MAX_REDRAW_S. A redraw takes server time from other visitors and 15 ms in the browser; with more redraws a page falls
# behind fast models. A redraw is also when the server notices that a page was closed.
REDRAW_S = 0.1
MAX_REDRAW_S = 0.8
WAITS_S = 0.4  # before a place in line is shown: also who is alone has one for a moment


@dataclass(frozen=True, kw_only=True)
class _Question:
    """What is asked of the model.

    Attributes:
        before: the messages before the question.
        text: the question, of any type.
        is_typed: whether it comes from the message box, which is emptied then.
        beginning: the answer that the model goes on from; None: there is none yet.
        pictures: that are shown with it, as data URLs.
    """

    before: list[PageMessage]
    text: Any
    is_typed: bool
    beginning: PageMessage | None = None
    pictures: tuple[str, ...] = ()


class ChatTab(Tab):
    """Conversations with the chat model."""

    title, id = "Chat", "chat"

    def __init__(self, shared: Shared):
        self._service = service = shared.service.chat
        backend, context = shared.backends.chat, shared.backends.settings.context
        self._context = context
        self._growing = 0  # answers that grow at the moment; only touched on the event loop
        self.loading = LoadingPanel(shared.backends.chat_models)
        with self.loading.panel, gr.Row(elem_id="chat"):
            with gr.Column(elem_id="chat-left"):
                gr.HTML(LEFT, apply_default_css=False)
            with gr.Column(elem_id="talk"):
                with gr.Row(elem_id="talk-head"):
                    gr.HTML(HEAD_START, apply_default_css=False)
                    self.picker: ModelPicker[ChatModel] = ModelPicker(shared.backends.chat_models, "chat-model")
                    gr.HTML(HEAD, apply_default_css=False)
                self._hello = gr.HTML(hello(backend), elem_id="hello", apply_default_css=False)
                self._chatbot = gr.Chatbot(
                    label="Conversation",
                    show_label=False,
                    container=False,
                    height=None,
                    layout="bubble",
                    buttons=[],
                    latex_delimiters=LATEX_DELIMITERS,
                    elem_id="conversation",
                )
                self._notices = gr.HTML(visible=False, elem_id="chat-notices", apply_default_css=False)
                self._attached = gr.Textbox("", visible=False)  # filled by the event that asks
                with gr.Column(elem_id="box"):
                    gr.HTML(ATTACHED, elem_id="attached-pictures", apply_default_css=False)
                    self._textbox = gr.Textbox(
                        "",
                        label="Message",
                        show_label=False,
                        container=False,
                        placeholder="Ask something",
                        lines=1,
                        max_lines=12,
                        submit_btn="Send",
                        elem_id="message",
                    )
                    gr.HTML(UNDER_BOX, elem_id="under-box", apply_default_css=False)
                gr.HTML(HINT, elem_id="chat-hint", apply_default_css=False)
            with gr.Column(elem_id="chat-settings"):
                self._settings = ChatSettings(most=context, max_tokens=service.max_tokens)
                ModelLoader(self.picker, shared.service.models, "chat")
            self._bridge = gr.HTML("", html_template="", elem_id="chat-bridge", js_on_load=BRIDGE_JS)
        shown = [self._hello, self._notices, self._bridge]
        self.picker.fill(self.loading, shown, self._settings.of_model, self._of_model, live=self._notices)
        self._wire()

    def _of_model(self, backend: Backend[ChatModel]) -> list[dict[str, Any]]:
        """What is to be known about the model, and the sampling parameters that it recommends."""
        assistant = backend.get()
        lines = "".join(f"<p>{html.escape(notice)}</p>" for notice in assistant.notices)
        recommended = self._settings.recommended(assistant)
        facts = {
            "model": backend.name,
            "sees": bool(assistant.picture_sizes),
            "pictures": assistant.picture_sizes,
            "context": self._context,
            "max_tokens": self._service.max_tokens,
            "recommended": recommended,
        }
        return [
            gr.update(value=hello(backend)),
            gr.update(value=lines, visible=bool(lines)),
            gr.update(value=json.dumps(facts)),
            *self._settings.fitted(assistant),
        ]

    def _wire(self) -> None:
        chatbot, textbox, bridge = self._chatbot, self._textbox, self._bridge
        settings = self._settings.components
        outputs = [chatbot, textbox]
        # one event for every way to ask, so that a page never runs two at once
        asking = gr.on(
            [textbox.submit, bridge.submit],
            self._ask,
            [textbox, chatbot, self.picker.chosen, self._attached, *settings],
            outputs,
            js="(typed, talk, model, _, ...others) => [typed, talk, model, studio.chat.pictures.attached(), ...others]",
            **UNPROCESSED,
            **EVENT,
        )
        # after the event, because the page ignores the next question until then
        update_after(asking, [textbox], [_idle()])
        for ended in (asking.then, asking.failure):
            ended(None, chatbot, chatbot, js="value => studio.chat.ended(value)", **UNQUEUED)
        # the update follows the cancellation, or a late piece of the answer would overwrite it
        cancel = textbox.stop(None, cancels=asking, queue=False, api_visibility="private")
        stopped = "value => [studio.chat.ended(value, 'stopped'), studio.chat.idle]"
        cancel.then(None, chatbot, outputs, js=stopped, **UNQUEUED)
        # what the page's scripts put into the page: another conversation with its settings, another version
        left = bridge.click(None, cancels=asking, queue=False, api_visibility="private")
        left.then(None, None, [*outputs, *settings], js="() => studio.chat.take()", **UNQUEUED)
        chatbot.change(None, chatbot, js="value => { studio.chat.changed(value); }", **UNQUEUED)
        gr.on(
            [each.change for each in settings],
            None,
            settings,
            js="(...values) => { studio.chat.settings.changed(values); }",
            **UNQUEUED,
        )
        bridge.change(self._drawn, [bridge, chatbot], chatbot, **UNQUEUED_UNPROCESSED)

    def _drawn(self, request: object, history: object) -> Any:
        """What only the server can turn into entries: an answer that the visitor has edited, an imported conversation.

        Args:
            request: the bridge's value, JSON; it also holds what the server itself has put there.
            history: the chatbot's value.
        """
        with errors_shown():
            match _json(request):
                case {"do": "rewrite", "index": index, "text": str(text)}:
                    messages = read(history)
                    at = position(index, history)
                    if not 0 <= at < len(messages):
                        raise RequestRejected("this message does not exist: reload the page")
                    messages[at] = replace(messages[at], text=text, note="edited", reasoning="")
                    return _shown(messages)
                case {"do": "load", "messages": messages}:
                    return _shown(_imported(messages))
        return gr.skip()

    @streamed
    def _ask(
        self, event: gr.EventData, typed: object, history: object, chosen: object, pictures: object, *settings: Any
    ) -> AsyncGenerator[Any, None]:
        """A question that was typed, or what a button under a message asks for."""
        messages, shown = read(history), attached(pictures)
        match details_of(event) or {}:
            case {"do": "ask", "text": text}:
                question = _Question(before=messages, text=text, is_typed=False, pictures=shown)
            case {"do": "edit", "index": index, "text": text}:
                at = position(index, history)
                before = messages[:at]
                kept = messages[at].pictures if at < len(messages) else ()
                question = _Question(before=before, text=text, is_typed=False, pictures=kept)
            case {"do": "retry", "index": index}:
                at = _last_question(messages, position(index, history))
                asked = messages[at]
                question = _Question(before=messages[:at], text=asked.text, is_typed=False, pictures=asked.pictures)
            case {"do": "continue", "index": index}:
                at = position(index, history)
                if at != len(messages) - 1 or at < 1 or [m.role for m in messages[at - 1 :]] != ["user", "assistant"]:
                    raise RequestRejected("only the last answer can be continued")
                asked = messages[at - 1]
                question = _Question(
                    before=messages[: at - 1],
                    text=asked.text,
                    is_typed=False,
                    beginning=messages[at],
                    pictures=asked.pictures,
                )
            case _:
                question = _Question(before=messages, text=typed, is_typed=True, pictures=shown)
        return self._answer(question, self.picker.model(chosen).name, settings)

    async def _answer(
        self, question: _Question, model: str, settings: tuple[Any, ...]
    ) -> AsyncGenerator[list[Any], None]:
        """Ask, and stream new values of the chatbot and the text box.

        The text box is emptied only after the assistant has accepted the question.

        Raises:
            RequestRejected: before the first item.
            EngineStopped: at any time; the part of the answer that was yielded stays on the page.
        """
        text = as_typed(question.text) if isinstance(question.text, str) else question.text
        messages = [*question.before, PageMessage(role="user", text=text, pictures=question.pictures)]
        came, drawn_at = time.monotonic(), 0.0
        before: list[dict[str, object]] | None = None
        beginning = question.beginning or PageMessage(role="assistant", text="")
        conversation = [message.to_assistant() for message in messages]
        request = self._settings.request(settings, conversation, model=model, beginning=beginning.text)
        replies = self._service.reply(request, sender())
        self._growing += 1
        try:
            async with aclosing(replies):
                emptied: dict[str, Any] = {"value": ""} if question.is_typed else {}
                box = gr.update(submit_btn=False, stop_btn="Stop", **emptied)
                async for reply in replies:
                    now = time.monotonic()
                    if reply.finish_reason is None and now < drawn_at + min(self._growing * REDRAW_S, MAX_REDRAW_S):
                        continue
                    answer = PageMessage(
                        role="assistant",
                        text=beginning.text + reply.text,
                        note=note(reply, waits=now > came + WAITS_S),
                        is_growing=reply.finish_reason is None,
                        context=reply.prompt_tokens + reply.tokens,
                        reasoning=reply.reasoning or beginning.reasoning,
                        reasoning_s=reply.reasoning_s if reply.reasoning else beginning.reasoning_s,
                        is_reasoning=reply.is_reasoning,
                    )
                    if before is None:  # in a thread: the conversation may be long
                        before = await asyncio.to_thread(_shown, messages)
                    yield [[*before, *answer.to_page()], box]
                    box, drawn_at = gr.skip(), time.monotonic()
        finally:
            self._growing -= 1


def _shown(messages: list[PageMessage]) -> list[dict[str, object]]:
    return [entry for message in messages for entry in message.to_page()]


def _json(value: object) -> object:
    try:
        return json.loads(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _imported(messages: object) -> list[PageMessage]:
    """The messages of a file.

    Raises:
        RequestRejected: they are not such messages, or too many.
    """
    if not isinstance(messages, list) or len(messages) > CHAT_MAX_MESSAGES:
        raise RequestRejected(f"an imported conversation: must be a list of at most {CHAT_MAX_MESSAGES:,} messages")
    read_ones = []
    for message in messages:
        match message:
            case {"role": "user" | "assistant" as role, "content": str(text)}:
                reasoning = message.get("reasoning", "")
                read_ones.append(
                    PageMessage(role=role, text=text, reasoning=reasoning if isinstance(reasoning, str) else "")
                )
            case _:
                raise RequestRejected("an imported message: needs a role of user or assistant and a text")
    if sum(len(message.text) for message in read_ones) > CHAT_MAX_CONVERSATION_CHARACTERS:
        raise RequestRejected(f"an imported conversation: at most {CHAT_MAX_CONVERSATION_CHARACTERS:,} characters")
    return read_ones


def _idle() -> dict[str, Any]:
    """The text box when no answer grows: Enter sends."""
    return gr.update(submit_btn="Send", stop_btn=False)


def _last_question(messages: list[PageMessage], at: int) -> int:
    """The index of the user's message at or before the index `at`."""
    for index in range(min(at, len(messages) - 1), -1, -1):
        if messages[index].role == "user":
            return index
    raise RequestRejected("there is no question to go back to: type one")
