"""Tools that a client offers to the model, and the model's calls of them. The client runs them.

`response.py` reads calls out of answers.
"""

import json
import re
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hfjax_app.chat.text.answer_grammar import check_size
from hfjax_app.errors import RequestRejected
from hfjax_app.limits import CHAT_MAX_ANSWER_CHARACTERS, TOOL_ID_MAX_CHARACTERS, TOOLS_MAX, TOOLS_MAX_CHARACTERS
from hfjax_app.validation import checked_text, quoted

Tool = dict[str, Any]  # {"type": "function", "function": {"name", "description", "parameters"}}, as templates take it

_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
_FIELDS = {"name", "description", "parameters", "strict"}
_ID_CHARACTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9  # what Mistral's templates insist on


def _new_id() -> str:
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A call that the model has made.

    Args:
        name: of the tool, as the model wrote it.
        arguments: as JSON.
        id: for the message with the tool's result.
    """

    name: str
    arguments: str
    id: str = field(default_factory=_new_id)


def checked_tools(tools: object) -> tuple[Tool, ...]:
    """The tools of a request, with what templates read of them.

    Raises:
        RequestRejected: too many or too large, no functions, or two of one name.
    """
    if not isinstance(tools, list):
        raise RequestRejected(f"tools: must be a list, not {type(tools).__name__}")
    if len(tools) > TOOLS_MAX:
        raise RequestRejected(f"tools: {len(tools)} of them; at most {TOOLS_MAX}")
    check_size(tools, "tools")
    found: dict[str, Tool] = {}
    for tool in tools:
        if not isinstance(tool, Mapping) or tool.get("type") != "function":
            raise RequestRejected('tools: each must be {"type": "function", "function": {...}}')
        function = tool.get("function")
        if not isinstance(function, Mapping) or not {key for key in function if function[key] is not None} <= _FIELDS:
            raise RequestRejected(f"tools: a function has {', '.join(sorted(_FIELDS))}, and nothing else")
        name, description = function.get("name"), function.get("description")
        parameters = function.get("parameters")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise RequestRejected(f"tools: name {quoted(name)}: must be 1 to 64 letters, digits, _ . and -")
        if name in found:
            raise RequestRejected(f"tools: two of them have the name {name!r}")
        if description is not None and not isinstance(description, str):
            raise RequestRejected(f"tools: the description of {name!r} must be text")
        if parameters is not None and not isinstance(parameters, Mapping):
            raise RequestRejected(f"tools: the parameters of {name!r} must be a JSON schema, an object")
        schema = {"type": "object", "properties": {}} if parameters is None else dict(parameters)
        found[name] = {
            "type": "function",
            "function": {"name": name, "description": description or "", "parameters": schema},
        }
    if (size := len(json.dumps(list(found.values())))) > TOOLS_MAX_CHARACTERS:
        raise RequestRejected(f"tools of {size:,} characters: at most {TOOLS_MAX_CHARACTERS:,}")
    return tuple(found.values())


def checked_calls(calls: object) -> list[dict[str, Any]]:
    """The calls of an earlier answer as templates take them: with the arguments as an object.

    Raises:
        RequestRejected: not as this app has sent them.
    """
    if not isinstance(calls, list) or not 1 <= len(calls) <= TOOLS_MAX:
        raise RequestRejected(f"tool_calls: must be a list of 1 to {TOOLS_MAX} calls")
    found, size = [], 0
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(call.get("id"), str):
            raise RequestRejected('tool_calls: each must be {"id", "type": "function", "function": {...}}')
        name, said = function.get("name"), function.get("arguments")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise RequestRejected(f"tool_calls: name {quoted(name)}: must be 1 to 64 letters, digits, _ . and -")
        try:
            text = checked_text(said, f"tool_calls: arguments of {name!r}", CHAT_MAX_ANSWER_CHARACTERS - size)
            size += len(text)
            arguments = json.loads(text)
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            raise RequestRejected(f"tool_calls: the arguments of {name!r} must be a JSON object, as text")
        check_size(arguments, "tool_calls", longest=CHAT_MAX_ANSWER_CHARACTERS)
        id_ = checked_text(call["id"], "tool_calls: id", TOOL_ID_MAX_CHARACTERS)
        found.append({"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}})
    return found


def schema_of_calls(tools: Sequence[Tool], *, arguments: str) -> dict[str, Any]:
    """The JSON schema of a call of one of these tools.

    Args:
        tools: at least one.
        arguments: the name of a call's arguments.

    Raises:
        RequestRejected: two of them define different things under one name.
    """
    definitions: dict[str, dict[str, Any]] = {}
    calls = []
    for tool in tools:
        schema = dict(tool["function"]["parameters"])
        for place in ("$defs", "definitions"):  # references begin at the root
            defined = schema.pop(place, None) or {}
            if not isinstance(defined, Mapping):
                raise RequestRejected(f"tools: {place} must be an object")
            for name, definition in defined.items():
                if definitions.setdefault(place, {}).setdefault(name, definition) != definition:
                    raise RequestRejected(f"tools: {name!r} is defined twice, differently; give it two names")
        properties = {"name": {"const": tool["function"]["name"]}, arguments: schema}
        required = {"required": [*properties], "additionalProperties": False}
        calls.append({"type": "object", "properties": properties, **required})
    return definitions | (calls[0] if len(calls) == 1 else {"anyOf": calls})
