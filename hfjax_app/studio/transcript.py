"""The conversation on the page, as gr.Chatbot holds it, and its translation for the assistant.

An answer's entry carries in its metadata what the page shows under it: a note (speed, place in line), whether it still
grows, and how much of the context is in use. The model never sees these. The reasoning before an answer is an entry of
its own on the page, which Gradio folds.
"""

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from hfjax_app.chat import Reply
from hfjax_app.errors import RequestRejected
from hfjax_app.limits import CHAT_MAX_NOTE_CHARACTERS
from hfjax_app.pictures import from_data_url
from hfjax_app.studio.markdown import as_typed, as_written, drawable

_FEWEST_FOR_SPEED = 32  # tokens: fewer come in a call or two, whose speed says nothing
_REASONING = "Reasoning"  # title of the entry
_PICTURE = re.compile(r"!\[Picture\]\((data:image/(?:jpeg|png|webp);base64,[A-Za-z0-9+/=]+)\)")


@dataclass(frozen=True, kw_only=True)
class PageMessage:
    """One message on the page.

    Attributes:
        role: "user" or "assistant".
        text: what was said.
        note: the line under an answer.
        is_growing: whether the answer was not complete when it was drawn.
        context: tokens of the context that the conversation took up to here; 0 if unknown.
        reasoning: what was thought before it; empty if nothing was.
        reasoning_s: the seconds that it took.
        is_reasoning: whether it was growing when it was drawn.
        pictures: of a question, as data URLs; they stand before its text for the model, and behind it on the page.
    """

    role: str
    text: str
    note: str = ""
    is_growing: bool = False
    context: int = 0
    reasoning: str = ""
    reasoning_s: float | None = None
    is_reasoning: bool = False
    pictures: tuple[str, ...] = ()

    def to_page(self) -> list[dict[str, object]]:
        """The message as gr.Chatbot takes it. Texts are parts, because Gradio would re-indent a bare string."""
        if self.role != "assistant":
            drawn = (f"![Picture]({url})" for url in self.pictures)
            return [_entry(self.role, drawable(self.text, editable=True), *drawn)]
        # Gradio draws these only beside a title.
        about = {"log": self.note, "status": "pending" if self.is_growing else "done", "id": self.context}
        answer = _entry(self.role, drawable(self.text)) | {"metadata": about}
        if not self.reasoning:
            return [answer]
        state = {"title": _REASONING, "status": "pending" if self.is_reasoning else "done"}
        seconds = {} if self.reasoning_s is None else {"duration": max(0.1, round(self.reasoning_s, 1))}
        return [_entry(self.role, drawable(self.reasoning)) | {"metadata": state | seconds}, answer]

    def to_assistant(self) -> dict[str, Any]:
        """The message as the assistant takes it.

        Raises:
            RequestRejected: a picture is too large, or no base64.
        """
        if self.pictures:
            shown = [{"type": "image", "image": from_data_url(url, "picture")} for url in self.pictures]
            return {"role": self.role, "content": [*shown, {"type": "text", "text": self.text}]}
        return {"role": self.role, "content": self.text} | ({"reasoning": self.reasoning} if self.reasoning else {})


def _entry(role: str, *texts: str) -> dict[str, object]:
    return {"role": role, "content": [{"type": "text", "text": text} for text in texts]}


def attached(value: object) -> tuple[str, ...]:
    """The pictures that a page sends with a question, as data URLs.

    Raises:
        RequestRejected: they are none.
    """
    try:
        urls = json.loads(value) if isinstance(value, str) and value else []
    except ValueError:
        urls = None
    if not isinstance(urls, list) or not all(
        isinstance(url, str) and _PICTURE.fullmatch(f"![Picture]({url})") for url in urls
    ):
        raise RequestRejected("pictures: must be a list of data URLs: reload the page")
    return tuple(urls)


def read(history: object) -> list[PageMessage]:
    """The messages of a gr.Chatbot's value, as the browser sent it.

    Raises:
        RequestRejected: it is not a list of messages.
    """
    messages: list[PageMessage] = []
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


def _message(message: object) -> PageMessage:
    match message:
        case {"role": "user", "content": str(text) | [{"text": str(text)}]}:
            return PageMessage(role="user", text=as_typed(text))
        case {"role": "user", "content": [{"text": str(text)}, *parts]}:
            shown = [_PICTURE.fullmatch(part["text"]) for part in parts if isinstance(_text_of(part), str)]
            return PageMessage(role="user", text=as_typed(text), pictures=tuple(found[1] for found in shown if found))
        case {"role": "assistant", "content": str(text) | [{"text": str(text)}, *_]}:
            return PageMessage(role="assistant", text=as_written(text), **_about(message))
    raise RequestRejected("each message needs a role of user or assistant and a text")


def _text_of(part: object) -> object:
    return part.get("text") if isinstance(part, dict) else None


def _about(entry: object) -> dict[str, Any]:
    """What the metadata of an answer's entry says."""
    about: dict[str, Any] = {}
    match entry:
        case {"metadata": {"log": str(note)}}:
            about["note"] = note[:CHAT_MAX_NOTE_CHARACTERS]
    match entry:
        case {"metadata": {"status": "pending"}}:
            about["is_growing"] = True
    match entry:
        case {"metadata": {"id": int(tokens)}} if 0 <= tokens < 1 << 31 and not isinstance(tokens, bool):
            about["context"] = tokens
    return about


def note(reply: Reply, *, waits: bool = True) -> str:
    """The line under an answer: place in line, or time to first token, tokens per second, tokens, and so on.

    Args:
        reply: the answer so far.
        waits: whether it has waited long enough for its place in line to mean something.
    """
    facts: list[str] = []
    if reply.place and waits:
        facts.append(f"place {reply.place} in line")
    if reply.ttft_s is not None:
        facts.append(f"first token {_duration(reply.ttft_s)}")
    if (speed := _speed(reply)) is not None:
        facts.append(f"{speed:,.0f} tokens/s" if speed >= 10 else f"{speed:.1f} tokens/s")
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
    return " · ".join(facts) or "thinking …"


def _speed(reply: Reply) -> float | None:
    """Tokens a second over the whole time, from the question on; None for answers that are too short."""
    if reply.ttft_s is None or reply.tokens_per_s is None or reply.tokens < _FEWEST_FOR_SPEED:
        return None
    return reply.tokens / (reply.ttft_s + (reply.tokens - 1) / reply.tokens_per_s)


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
