"""The errors that reach a user. Each message is one line, names the value and the limit, and says what to do."""

import re
from traceback import extract_tb

# A path from the root or from home, without its last part. In a URL a colon or a letter precedes the slash.
_FOLDERS = re.compile(r"(?<![\w.:/~])~?/(?:[^/\s'\"]+/)*(?=[^/\s'\"])")


class HfjaxError(Exception):
    """Base of every error that this app raises on purpose."""


class RequestRejected(HfjaxError):
    """The request is wrong; it was refused before any computation."""


class NotFound(RequestRejected):
    """The request names something that does not exist."""


class ConstraintFailed(RequestRejected):
    """What a constrained answer may go on with can't be told: its grammar is too complex. Found while it is made."""


class NotAllowed(RequestRejected):
    """The sender may not do this."""


class WrongMediaType(RequestRejected):
    """The body is not of the kind that the route takes."""


class ModelUnavailable(HfjaxError):
    """A model can't be loaded or can't run; the message names the model, the reason and the remedy."""


class Overloaded(HfjaxError):
    """The request is right and comes at a wrong time: a line or the client's share is full, or a quota is used up.

    Args:
        message: for the client.
        retry_after_s: when it may be tried again.
    """

    def __init__(self, message: str, retry_after_s: int):
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Draining(HfjaxError):
    """The server is stopping and takes no new requests."""


class EngineStopped(HfjaxError):
    """The engine is not running; the cause, if there is one, is chained."""


def first_line(error: BaseException) -> str:
    """An error's message in one line: its first line, and the next one after a line that ends with a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    message = lines[0]
    for line in lines[1:]:
        if not message.endswith(":"):
            break
        message = f"{message} {line}"
    return message


def without_folders(message: str) -> str:
    """A message for visitors: each path on this machine is reduced to its last part."""
    return _FOLDERS.sub("", message)


def kind_and_line(error: BaseException) -> str:
    """The class of an error and its message, in one line."""
    kind, message = type(error).__name__, first_line(error)
    return kind if message == kind else f"{kind}: {message}"


def where(error: BaseException) -> str:
    """The class of an unexpected error and the place in the code that raised it, for the log.

    Never with a value, because it may be what a visitor wrote.
    """
    frames = extract_tb(error.__traceback__)
    places = [f"{frame.filename.rpartition('site-packages/')[2]}:{frame.lineno}" for frame in frames]
    own = [place for place in places if "hfjax_app" in place]
    named = dict.fromkeys([*places[-1:], *own[-1:]])
    return f"{type(error).__name__} at {', from '.join(named)}"
