"""Checks of text that comes from outside, before anything is computed with it."""

import reprlib

from hfjax_app.errors import RequestRejected


def quoted(value: object) -> str:
    """A value from outside as a short text for a message."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python's limit for the conversion of integers
        return "a number of more than 4,300 digits"


def checked_text(text: object, what: str, limit: int, *, may_be_blank: bool = False) -> str:
    """The text itself, if a tokenizer can read it.

    Args:
        text: what came from outside; anything at all.
        what: its name in messages, such as "prompt".
        limit: the most characters it may have.
        may_be_blank: whether white space only is allowed.

    Raises:
        RequestRejected: not a str, blank, too long, a NUL character, or half a surrogate pair.
    """
    if not isinstance(text, str):
        raise RequestRejected(f"{what}: must be text, not {type(text).__name__}")
    if len(text) > limit:
        raise RequestRejected(f"{what} of {len(text):,} characters: at most {limit:,}; shorten it")
    if not may_be_blank and not text.strip():
        raise RequestRejected(f"{what} is empty: type something first")
    if "\0" in text:
        raise RequestRejected(f"{what} contains a NUL character at {text.index(chr(0))}: remove it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestRejected(f"{what} is not valid Unicode: half a surrogate pair at {error.start}") from None
    return text


def checked_label_names(labels: object, most: int, longest: int) -> tuple[str, ...]:
    """The names without white space around them, if they are different.

    Args:
        labels: what came from outside; anything at all.
        most: how many there may be; at least two are needed.
        longest: the most characters of one.

    Raises:
        RequestRejected: not a list of texts, too few, too many, or one that is blank, too long or there twice.
    """
    if not isinstance(labels, list):
        raise RequestRejected(f"labels: must be a list of texts, not {type(labels).__name__}")
    if not 2 <= len(labels) <= most:
        raise RequestRejected(f"{len(labels)} labels: must be 2 to {most}")
    names = tuple(checked_text(label, "label", longest).strip() for label in labels)
    for at, name in enumerate(names):
        if name.casefold() in (other.casefold() for other in names[:at]):
            raise RequestRejected(f"label {name!r} is there twice")
    return names
