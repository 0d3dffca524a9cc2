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
from hfjax_app.embedded import MODELS
from hfjax_app.errors import RequestRejected
from hfjax_app.limits import CHAT_MAX_CONVERSATION_CHARACTERS, CHAT_MAX_MESSAGES
from hfjax_app.runtime.seams.gradio import details_of
from hfjax_app.studio.chat_settings import ChatSettings
from hfjax_app.studio.markdown import LATEX_DELIMITERS, as_typed
from hfjax_app.studio.model_picker import ModelLoader, ModelPicker, model_card
from hfjax_app.studio.tab import UNPROCESSED, UNQUEUED, UNQUEUED_UNPROCESSED, LoadingPanel, Shared, Tab, update_after
from hfjax_app.studio.theme import CROSS, SLIDERS, icon, icon_button, mark
from hfjax_app.studio.transcript import PageMessage, attached, note, position, read

_EMBEDDED = (
    "It has 4&nbsp;million parameters and was made for this app: a demo that chats about JAX and its neighbours, adds "
    "small numbers and tells short stories."
)
_OTHER = "The code is the model's own, unchanged, and every program was compiled before you came."
_REAL_MODEL = """<h3>Run a real model</h3>
<p>A model from the hub, or a folder in Hugging Face format, takes this one's place:</p>
<pre tabindex="0" role="region" aria-label="Command"><code>HFJAX_CHAT_MODEL=HuggingFaceTB/SmolLM2-135M-Instruct make run
</code></pre><p>Only safetensors are loaded, and no code from a checkpoint is ever run. Every decoder of transformers
goes the same way: its own code is traced once, and XLA compiles it.</p>"""


_PLUS, _LENS = '<path d="M12 5v14M5 12h14"/>', '<circle cx="11" cy="11" r="6.5"/><path d="m16 16 4 4"/>'
_LIST = '<path d="M4 7h16M4 12h16M4 17h10"/>'
_CLIP = '<path d="M19 12.5 12.6 19a4.2 4.2 0 0 1-6-6l7-7a2.8 2.8 0 0 1 4 4l-6.9 6.9a1.4 1.4 0 0 1-2-2L15 8.6"/>'
_CAMERA = '<path d="M4 8h3.5L9 5.5h6L16.5 8H20v11H4z"/><circle cx="12" cy="13" r="3.5"/>'
_PICTURE = (
    '<rect x="4" y="5" width="16" height="14" rx="2"/><circle cx="9" cy="10" r="1.6"/><path d="m5 18 5-5 3 3 3-3 3 3"/>'
)
_DOTS = '<path d="M5 12h.01M12 12h.01M19 12h.01" stroke-width="2.6"/>'

# assets/chat_list.js fills the list.
LEFT = f"""<div class="panel-head only-drawer"><h2>Conversations</h2>
{icon_button("Close conversations", CROSS, 'data-flip="chat-left"')}</div>
<div class="left-top"><button class="btn" type="button" data-do="new">{icon(_PLUS)}New chat</button>
<div class="search">{icon(_LENS)}<input type="search" id="search-chats" placeholder="Search conversations"
 aria-label="Search conversations"></div></div>
<nav id="chat-list" aria-label="Conversations" tabindex="0"></nav>
<footer class="left-foot"><span>Kept in this browser only, nothing on the server</span>
<button class="icon" type="button" popovertarget="chats-menu" aria-label="Export, import or delete all conversations"
 title="Export, import or delete all">{icon(_DOTS)}</button></footer>
<div class="menu" id="chats-menu" popover>
<button type="button" data-do="export-all">Export all as JSON</button>
<button type="button" data-do="import">Import …</button>
<button type="button" data-do="delete-all" class="danger">Delete all</button></div>
<input type="file" id="import-chats" accept=".json,application/json" hidden aria-label="A file of conversations">"""

# Before and behind the list of models.
HEAD_START = f"""<div class="talk-bar">
{icon_button("Conversations", _LIST, 'data-flip="chat-left" aria-controls="chat-left"')}</div>"""
HEAD = f"""<div class="talk-bar"><span class="chat-title" id="chat-title"></span>
{icon_button("Settings", SLIDERS, 'data-flip="chat-settings" aria-controls="chat-settings"')}</div>"""

# assets/chat_pictures.js shows there what is attached; its button is hidden for models that do not see.
ATTACHED = '<div id="attached"></div>'
UNDER_BOX = f"""<div class="under"><button class="icon" type="button" data-do="file" aria-label="Paste a text file"
 title="Paste a text file">{icon(_CLIP)}</button>
{icon_button("Add a picture", _PICTURE, 'data-do="picture"')}
{icon_button("Take a picture", _CAMERA, 'data-do="camera"')}
<input type="file" id="picture-files" accept="image/*" multiple hidden aria-label="Pictures">
<input type="file" id="picture-camera" accept="image/*" capture="environment" hidden aria-label="Camera">
<input type="file" id="paste-file" accept="text/*,.md,.py,.json,.csv,.log" hidden aria-label="A text file">
<span class="ctx" id="context"></span></div>"""

HINT = """<p class="hint"><span class="keys"><kbd>Enter</kbd> sends · <kbd>Shift</kbd> <kbd>Enter</kbd> new line ·
 <kbd>Esc</kbd> stops · </span>kept in this browser, nothing on the server</p>"""

# The bridge carries facts about the model to the page's scripts, and their commands back.
BRIDGE_JS = "studio.chat.connect(trigger, props, watch)"

_IDEAS = (
    ("What is JAX?", "a fact it knows"),
    ("My name is Ada. What can you do?", "it remembers names"),
    ("Tell me a short story about a fox.", "a few sentences"),
    ("What is 17 plus 25?", "numbers up to 100"),
)
_OTHER_IDEAS = (
    ("What is JAX?", "a short answer"),
    ("Explain recursion with an example in Python.", "an answer with code"),
    ("Tell me a short story about a fox.", "watch it stream"),
    ("Write a haiku about static shapes.", "three lines"),
)


def hello(backend: "Backend[Any]") -> str:
    """The first screen of a conversation: what this is, which model answers, what it can do."""
    name = html.escape(backend.name)
    is_embedded = backend.model in MODELS
    about = _EMBEDDED if is_embedded else _OTHER
    ideas = "".join(
        f'<li><button type="button" data-ask="{html.escape(text)}"><b>{html.escape(text)}</b><span>{why}</span>'
        "</button></li>"
        for text, why in (_IDEAS if is_embedded else _OTHER_IDEAS)
    )
    link, sheet = model_card(backend, "chat-model-card")
    before = f"{link} · " if link else ""
    return f"""<div class="hello">{mark()}<h2>Ask {name}</h2>
<p>A Hugging Face PyTorch model, computed by JAX on this machine. {about}</p><ul class="ideas">{ideas}</ul>
<p class="links">{before}<button type="button" class="link" popovertarget="real-model">Run a real model, one
 line</button> · <a class="link" href="#engine">See how it runs</a></p>
{sheet}<div class="sheet" id="real-model" popover>{_REAL_MODEL}</div></div>"""


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
            js="(typed, talk, model, _, ...others) => [typed, talk, model, studio.chat.asked(), ...others]",
            **UNPROCESSED,
            **EVENT,
        )
        # after the event, because the page ignores the next question until then
        update_after(asking, [textbox], [_idle()])
        for ended in (asking.then, asking.failure):
            ended(None, chatbot, chatbot, js="value => [studio.chat.ended(value)]", **UNQUEUED)
        # Gradio does not wait for the cancellation: late pieces of the answer follow, and then `ended`
        cancel = textbox.stop(None, cancels=asking, queue=False, api_visibility="private")
        cancel.then(None, chatbot, outputs, js="value => [studio.chat.stopped(value), studio.chat.idle]", **UNQUEUED)
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
