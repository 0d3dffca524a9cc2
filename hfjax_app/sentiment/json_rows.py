"""Rows of a JSON file: a value on each line, or one array of all of them. Does not know what a row means."""

import json
import re
from collections.abc import Iterator
from enum import Enum, auto
from typing import IO

from hfjax_app.errors import RequestRejected

_SPACE = re.compile(r"\s*")


class NoValue(Enum):
    """What stands on a line that holds no value."""

    BLANK = auto()
    BROKEN = auto()


def values(file: IO[str], name: str) -> Iterator[object]:
    """The value of each row, or NoValue.

    Args:
        file: at its start.
        name: for messages.

    Raises:
        RequestRejected: while reading: an array is damaged, or is not the only value. A damaged line is no error.
    """
    begin = next((line for line in file if line.strip()), "")
    file.seek(0)
    if begin.lstrip().startswith("["):
        yield from _items(file.read(), name)
    else:
        for line in file:
            yield _value(line)


def as_text(value: object) -> str:
    """A value as a cell's text."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def _value(line: str) -> object:
    if not line.strip():
        return NoValue.BLANK
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return NoValue.BROKEN


def _items(text: str, name: str) -> Iterator[object]:
    """An array's items, one by one: the whole array as Python values would be many times as large."""
    decoder = json.JSONDecoder()
    at = _after_space(text, text.index("[") + 1)
    while not text.startswith("]", at):
        begins = at
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            raise _damaged(text, begins, name) from None
        yield value
        at = _after_space(text, at)
        if text.startswith(",", at):
            at = _after_space(text, at + 1)
        elif not text.startswith("]", at):
            raise _damaged(text, at, name)
    if _after_space(text, at + 1) < len(text):
        raise _damaged(text, at + 1, name)


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _damaged(text: str, at: int, name: str) -> RequestRejected:
    line = text.count("\n", 0, at) + 1
    return RequestRejected(
        f"{name!r}: line {line:,}: its JSON array is damaged or goes on behind its end; write one array, or an "
        "object on each line"
    )
