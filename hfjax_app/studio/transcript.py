"""The conversation on the page, as gr.Chatbot holds it, and its translation for the assistant.

Each answer has two parts: its text and a note under it (speed, place in line), which the model must never see. The
reasoning before an answer is an entry of its own on the page, which Gradio folds.
"""

import html
import re
from dataclasses import dataclass, replace
from typing import Any

from hfjax_app.chat import Reply
from hfjax_app.errors import RequestRejected
from hfjax_app.limits import CHAT_MAX_NOTE_CHARACTERS
from hfjax_app.studio.markdown import as_typed, as_written, drawable

# The note of a growing answer has its own class, which tells an interrupted answer from a complete one.
_FEWEST_FOR_SPEED = 32  # tokens: fewer come in a call or two, whose speed says nothing
_GROWING, _ENDED = '<small class="note growing">', '<small class="note">'
_TAG = re.compile(r"<[^<>]*>")
_REASONING = "Reasoning"  # title of the entry


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message on the page.

    Attributes:
        role: "user" or "assistant".
        text: what was said.
        note: the line under an answer, as HTML.
        reasoning: what was thought before it; empty if nothing was.
        reasoning_s: the seconds that it took.
        is_reasoning: whether it was growing when it was drawn.
    """

    role: str
    text: str
    note: str = ""
    reasoning: str = ""
    reasoning_s: float | None = None
    is_reasoning: bool = False

    def to_page(self) -> list[dict[str, object]]:
        """The message as gr.Chatbot takes it. Texts are parts, because Gradio would re-indent a bare string."""
        if self.role != "assistant":
            return [_entry(self.role, drawable(self.text, editable=True))]
        answer = _entry(self.role, drawable(self.text), self.note)
        if not self.reasoning:
            return [answer]
        state = {"title": _REASONING, "status": "pending" if self.is_reasoning else "done"}
        seconds = {} if self.reasoning_s is None else {"duration": max(0.1, round(self.reasoning_s, 1))}
        return [_entry(self.role, drawable(self.reasoning)) | {"metadata": state | seconds}, answer]

    @property
    def is_growing(self) -> bool:
        """Whether it is an answer that was not complete when it was drawn."""
        return self.note.startswith(_GROWING)

    def to_assistant(self) -> dict[str, str]:
        """The message as the assistant takes it."""
        return {"role": self.role, "content": self.text} | ({"reasoning": self.reasoning} if self.reasoning else {})


def _entry(role: str, *texts: str) -> dict[str, object]:
    return {"role": role, "content": [{"type": "text", "text": text} for text in texts]}


def read(history: object) -> list[Message]:
    """The messages of a gr.Chatbot's value, as the browser sent it.

    Raises:
        RequestRejected: it is not a list of messages.
    """
    messages: list[Message] = []
    thought: dict[str, Any] = {}
    for entry in _entries(history):
        message = _message(entry)
        if _is_reasoning(entry):
            thought = {"reasoning": message.text, "reasoning_s": _seconds(entry)}
            continue
        messages.append(replace(message, **thought) if message.role == "assistant" else message)
        thought = {}
    return messages


def position(index: object, history: object) -> int:
    """The index of the message that an event of gr.Chatbot concerns.

    Args:
        index: among the entries on the page; Gradio may send a pair of entry and part.
        history: the chatbot's value.
    """
    first = index[0] if isinstance(index, list | tuple) and index else index
    if not isinstance(first, int) or isinstance(first, bool) or first < 0:
        raise RequestRejected("this message does not exist: reload the page")
    return first - sum(map(_is_reasoning, _entries(history)[:first]))


def _entries(history: object) -> list[object]:
    if not isinstance(history, list):
        raise RequestRejected("the conversation must be a list of messages")
    return history


def _is_reasoning(entry: object) -> bool:
    match entry:
        case {"role": "assistant", "metadata": {"title": title}}:
            return bool(title == _REASONING)
    return False


def _seconds(entry: object) -> float | None:
    match entry:
        case {"metadata": {"duration": int(seconds) | float(seconds)}} if 0 <= seconds < 1e9:
            return float(seconds)
    return None


def _message(message: object) -> Message:
    match message:
        case {"role": "user", "content": str(text) | [{"text": str(text)}, *_]}:
            return Message(role="user", text=as_typed(text))
        case {"role": "assistant", "content": str(text)}:
            return Message(role="assistant", text=as_written(text))
        case {"role": "assistant", "content": [{"text": str(text)}, *notes]}:
            line = str(notes[0].get("text", ""))[:CHAT_MAX_NOTE_CHARACTERS] if _is_part(notes) else ""
            return Message(role="assistant", text=as_written(text), note=line)
    raise RequestRejected("each message needs a role of user or assistant and a text")


def _is_part(notes: list[object]) -> bool:
    return bool(notes) and isinstance(notes[0], dict)


def note(reply: Reply) -> str:
    """The line under an answer: place in line, or time to first token, tokens per second, tokens, and so on."""
    facts: list[str] = []
    if reply.place:
        facts.append(f"place {reply.place} in line")
    if reply.ttft_s is not None:
        facts.append(f"first token {_duration(reply.ttft_s)}")
    if reply.tokens_per_s is not None and reply.tokens >= _FEWEST_FOR_SPEED:
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
    return replace(
        answer, is_reasoning=False, note=_line(f"{html.unescape(_TAG.sub('', answer.note))} · stopped", _ENDED)
    )


def _line(text: str, opening: str) -> str:
    return f"{opening}{html.escape(text)}</small>"


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
