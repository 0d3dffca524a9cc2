"""The messages of a conversation as they come from clients, checked; adjacent ones of one role are joined.

`chat_template.py` makes tokens of them.
"""

import json
from collections.abc import Iterable
from typing import Any

from hfjax_app.chat.text.pictures import Shown, said_and_shown
from hfjax_app.chat.text.tools import checked_calls
from hfjax_app.errors import RequestRejected
from hfjax_app.limits import (
    CHAT_MAX_ANSWER_CHARACTERS,
    CHAT_MAX_CHARACTERS,
    CHAT_MAX_CONVERSATION_CHARACTERS,
    CHAT_MAX_MESSAGES,
    CHAT_MAX_PICTURES,
)
from hfjax_app.validation import checked_text

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
