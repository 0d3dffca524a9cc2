"""The errors that reach a user. Each message is one line, names the value and the limit, and says what to do."""

import re

# Of a path that begins at the root, or at home, all but the last part. No address: there is a colon or a letter before.
_FOLDERS = re.compile(r"(?<![\w.:/~])~?/(?:[^/\s'\"]+/)*(?=[^/\s'\"])")


class HfjaxError(Exception):
    """Base of every error that this app raises on purpose."""


class RequestRejected(HfjaxError):
    """The user's fault: the request was refused before anything was computed."""


class ModelUnavailable(HfjaxError):
    """A model can't be loaded or can't run: which one, why, and what would help."""


class EngineStopped(HfjaxError):
    """The engine is not running (any more); the cause, where there is one, is chained."""


def first_line(error: BaseException) -> str:
    """What an error says, in one line: the first one, with what follows a colon at its end."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    said = lines[0]
    for line in lines[1:]:
        if not said.endswith(":"):
            break
        said = f"{said} {line}"
    return said


def without_folders(message: str) -> str:
    """A message for people who use the app and don't run it: of each path on this machine its last part alone."""
    return _FOLDERS.sub("", message)


def kind_and_line(error: BaseException) -> str:
    """The kind of an error and what it says, in one line."""
    kind, said = type(error).__name__, first_line(error)
    return kind if said == kind else f"{kind}: {said}"
