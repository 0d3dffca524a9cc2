"""The conversation on the page, as gr.Chatbot holds it, and its translation for the assistant.

Each answer has two parts: its text and a note under it (speed, place in line), which the model must never see.
"""

import html
import re
from dataclasses import dataclass, replace

from hfjax_app.chat import Reply
from hfjax_app.errors import RequestRejected
from hfjax_app.limits import CHAT_MAX_NOTE_CHARACTERS

# The note of a growing answer has its own class, which tells an interrupted answer from a complete one.
_GROWING, _ENDED = '<small class="note growing">', '<small class="note">'
_TAG = re.compile(r"<[^<>]*>")
# The start of a tag outside of code. Gradio's Markdown would take it for HTML. An invisible character behind the "<"
# makes it text; clipboard.js removes the character from copied text.
_TAG_START = re.compile(r"(```.*?(?:```|\Z)|`[^`\n]*`)|<(?=[a-zA-Z/!?])", re.DOTALL)
_ESCAPED = "<\N{WORD JOINER}"


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message on the page.

    Attributes:
        role: "user" or "assistant".
        text: what was said.
        note: the line under an answer, as HTML.
    """

    role: str
    text: str
    note: str = ""

    def to_page(self) -> dict[str, object]:
        """The message as gr.Chatbot takes it. Texts are parts, because Gradio would re-indent a bare string."""
        escaped = _TAG_START.sub(lambda found: found[1] or _ESCAPED, self.text)
        texts = [self.text, self.note] if self.role == "assistant" else [escaped]
        return {"role": self.role, "content": [{"type": "text", "text": text} for text in texts]}

    @property
    def is_growing(self) -> bool:
        """Whether it is an answer that was not complete when it was drawn."""
        return self.note.startswith(_GROWING)

    def to_assistant(self) -> dict[str, str]:
        """The message as the assistant takes it."""
        return {"role": self.role, "content": self.text}


def read(history: object) -> list[Message]:
    """The messages of a gr.Chatbot's value, as the browser sent it.

    Raises:
        RequestRejected: it is not a list of messages.
    """
    if not isinstance(history, list):
        raise RequestRejected("the conversation must be a list of messages")
    return [_message(message) for message in history]


def _message(message: object) -> Message:
    match message:
        case {"role": "user" | "assistant" as role, "content": str(text)}:
            return Message(role=role, text=as_typed(text))
        case {"role": "user" | "assistant" as role, "content": [{"text": str(text)}, *notes]}:
            line = str(notes[0].get("text", ""))[:CHAT_MAX_NOTE_CHARACTERS] if _is_part(notes) else ""
            return Message(role=role, text=as_typed(text), note=line)
    raise RequestRejected("each message needs a role of user or assistant and a text")


def as_typed(text: str) -> str:
    """A text of the page without the characters that `to_page` has added."""
    return text.replace(_ESCAPED, "<")


def _is_part(notes: list[object]) -> bool:
    return bool(notes) and isinstance(notes[0], dict)


def position(index: object) -> int:
    """The index of the message that an event of gr.Chatbot concerns. Gradio may send a pair of message and part."""
    first = index[0] if isinstance(index, list | tuple) and index else index
    if not isinstance(first, int) or isinstance(first, bool) or first < 0:
        raise RequestRejected("this message does not exist: reload the page")
    return first


def note(reply: Reply) -> str:
    """The line under an answer: place in line, or time to first token, tokens per second, tokens, and so on."""
    facts: list[str] = []
    if reply.place:
        facts.append(f"place {reply.place} in line")
    if reply.ttft_s is not None:
        facts.append(f"first token {_duration(reply.ttft_s)}")
    if reply.tokens_per_s is not None:
        facts.append(
            f"{reply.tokens_per_s:,.0f} tokens/s" if reply.tokens_per_s >= 10 else f"{reply.tokens_per_s:.1f} tokens/s"
        )
    if reply.tokens:
        facts.append(f"{reply.tokens:,} tokens")
    if reply.reused_tokens:
        facts.append(f"reused {reply.reused_tokens:,} of {reply.prompt_tokens:,} tokens")
    if reply.drafted_tokens:
        facts.append(f"drafts: {reply.accepted_tokens:,} of {reply.drafted_tokens:,} tokens right")
    if reply.dropped_messages:
        facts.append(f"oldest {reply.dropped_messages} messages dropped: context is full")
    if reply.finish_reason == "length":
        facts.append("ended at max tokens")
    if reply.finish_reason == "context":
        facts.append("ended: context is full")
    return _line(" · ".join(facts) or "thinking …", _ENDED if reply.finish_reason else _GROWING)


def stopped(answer: Message) -> Message:
    """The answer with "stopped" in its note."""
    return replace(answer, note=_line(f"{html.unescape(_TAG.sub('', answer.note))} · stopped", _ENDED))


def _line(text: str, opening: str) -> str:
    return f"{opening}{html.escape(text)}</small>"


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
