"""The messages of a conversation as they come from clients, checked; adjacent ones of one role are joined.

`chat_template.py` makes tokens of them. In between a message is a text, with each picture at a place in it.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hfjax_app.chat.text.tools import checked_calls
from hfjax_app.errors import RequestRejected
from hfjax_app.limits import (
    CHAT_MAX_ANSWER_CHARACTERS,
    CHAT_MAX_CHARACTERS,
    CHAT_MAX_CONVERSATION_CHARACTERS,
    CHAT_MAX_MESSAGES,
    CHAT_MAX_PICTURES,
)
from hfjax_app.validation import checked_text, quoted

DETAILS = ("auto", "low", "high")


class Shown(NamedTuple):
    """A picture in a message.

    Args:
        at: so many characters of the message's text are before it.
        file: untrusted.
        detail: one of DETAILS: how large the model sees it, where it leaves a choice.
    """

    at: int
    file: bytes
    detail: str = "auto"


def said_and_shown(parts: Sequence[object]) -> tuple[str, list[Shown]]:
    """The text of a message in parts, and its pictures.

    Args:
        parts: {"type": "text", "text": str} and {"type": "image", "image": bytes of a file}, of which the latter may
            have a "detail"; anything at all.

    Raises:
        RequestRejected: a part is none of these.
    """
    text, shown = "", list[Shown]()
    for part in parts:
        values = part if isinstance(part, dict) else {}
        kind = values.get("type")
        given = values.get(kind) if isinstance(kind, str) else None
        if kind == "text" and isinstance(given, str):
            text += given
        elif kind == "image" and isinstance(given, bytes):
            if (detail := values.get("detail", "auto")) not in DETAILS:
                raise RequestRejected(f"detail = {quoted(detail)}: one of {', '.join(DETAILS)}")
            shown.append(Shown(len(text), given, detail))
        else:
            raise RequestRejected(f"content of type {quoted(kind)}: a part must have a text, or an image as bytes")
    return text, shown


def template_parts(text: str, shown: Sequence[Shown], split: Callable[[str], str], mark: str) -> list[dict[str, str]]:
    """The content of a message as chat templates take it.

    Args:
        text, shown: as `said_and_shown` returns them.
        split: puts marks into special tokens that were typed.
        mark: that splits a token.
    """
    ends = [*(picture.at for picture in shown), len(text)]
    texts = [split(text[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    if split("".join(texts)) != "".join(texts):  # a token around a picture: some templates write all pictures first
        texts = [piece + mark for piece in texts]
    parts: list[dict[str, str]] = []
    for at, piece in enumerate(texts):
        parts += [{"type": "text", "text": piece}] if piece else []
        parts += [{"type": "image"}] if at < len(shown) else []
    return parts


@dataclass(frozen=True, kw_only=True)
class PictureMarkup:
    """What stands for a picture in a model's prompts: in the text of its chat template, and among the tokens.

    Args:
        mark: the text of a token that the chat template writes for each picture.
        written: the text that takes its place, with one placeholder.
        placeholder: the id of the token that stands for each of a picture's embeddings.
        tokens: what stands in the place of the placeholder for a picture: ids of tokens, and negative numbers for
            placeholders; raises RequestRejected for a file that can't be read.
    """

    mark: str
    written: str
    placeholder: int
    tokens: Callable[[Shown], Sequence[int]]


# role and content; of the user maybe pictures as `pictures.Shown`, of an answer its reasoning and its tool_calls,
# of a tool its name and tool_call_id
Message = dict[str, Any]

IF_TOO_LONG = "start a new one, or leave out its oldest messages"
_ROLES = ("user", "assistant")
_TOOL = "tool"


def checked_messages(
    messages: object, *, may_use_tools: bool = False, may_show_pictures: bool = False
) -> list[Message]:
    """The messages of a conversation that ends with the user's turn; adjacent messages of one role are joined.

    An answer may have its "reasoning" beside its content; a blank one is left out.

    Args:
        messages: what came from outside; anything at all.
        may_use_tools: whether answers may have "tool_calls", and messages of the role "tool" with a "tool_call_id"
            may follow them, also at the end.
        may_show_pictures: whether the user's contents may be lists of parts, see `pictures.said_and_shown`.

    Raises:
        RequestRejected: not a list of {"role", "content"}, too many or too long, or the user has said nothing.
    """
    if not isinstance(messages, list) or not messages:
        raise RequestRejected("the conversation must be a list of messages, and not empty")
    if len(messages) > CHAT_MAX_MESSAGES:
        most = f"at most {CHAT_MAX_MESSAGES:,}"
        raise RequestRejected(f"conversation of {len(messages):,} messages: {most}; {IF_TOO_LONG}")
    turns: list[Message] = []
    calls: dict[str, str] = {}  # the names of the tools that were called, by the calls' ids
    roles = (*_ROLES, _TOOL) if may_use_tools else _ROLES
    total = in_a_row = count = 0  # characters, and pictures
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in roles:
            raise RequestRejected(f"each message needs a role of {' or '.join(roles)} and a content")
        role = message["role"]
        answer = role == "assistant"
        limit = CHAT_MAX_CHARACTERS if role == "user" else CHAT_MAX_ANSWER_CHARACTERS
        content, shown = message.get("content"), list[Shown]()
        if may_show_pictures and role == "user" and isinstance(content, list):
            content, shown = said_and_shown(content)
        content = checked_text(content, "message", limit, may_be_blank=answer or bool(shown))
        count += len(shown)
        if count > CHAT_MAX_PICTURES:
            raise RequestRejected(f"conversation with {count} pictures: at most {CHAT_MAX_PICTURES}; {IF_TOO_LONG}")
        made = checked_calls(message["tool_calls"]) if may_use_tools and message.get("tool_calls") else []
        total += len(content) + (len(json.dumps(made)) if made else 0)
        if total > CHAT_MAX_CONVERSATION_CHARACTERS:
            most = f"{CHAT_MAX_CONVERSATION_CHARACTERS:,} characters"
            raise RequestRejected(f"conversation of more than {most}: {IF_TOO_LONG}")
        if role == _TOOL:
            if (name := calls.get(str(message.get("tool_call_id")))) is None:
                raise RequestRejected("a message of the role tool needs the tool_call_id of a call before it")
            turns.append({"role": role, "content": content, "name": name, "tool_call_id": message["tool_call_id"]})
        elif turns and turns[-1]["role"] == role and not made and "tool_calls" not in turns[-1]:
            shown = [one._replace(at=len(turns[-1]["content"]) + 1 + one.at) for one in shown]
            turns[-1]["content"] += f"\n{content}"
            in_a_row += len(content)
            if in_a_row > limit:
                raise RequestRejected(
                    f"messages of the {role} in a row of {in_a_row:,} characters: at most {limit:,}; shorten them"
                )
        elif turns or role == "user":
            turns.append({"role": role, "content": content})
            in_a_row = len(content)
        if shown:
            turns[-1]["pictures"] = [*turns[-1].get("pictures", ()), *shown]
        if answer and turns:
            if message.get("reasoning") is not None:
                reasoning = checked_text(message["reasoning"], "reasoning", limit, may_be_blank=True)
                total += len(reasoning)
                turns[-1] |= {"reasoning": reasoning} if reasoning.strip() else {}
            if made:
                turns[-1]["tool_calls"] = made
                calls |= {call["id"]: call["function"]["name"] for call in made}
    if not turns or turns[-1]["role"] not in ("user", _TOOL):
        raise RequestRejected("the conversation must end with a message of the user")
    return turns


def pictures_of(messages: Iterable[Message]) -> list[Shown]:
    """The pictures of a conversation, in order."""
    return [picture for turn in messages for picture in turn.get("pictures", ())]
