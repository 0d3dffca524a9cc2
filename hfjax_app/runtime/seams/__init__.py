"""What this app uses of libraries' private parts, and what it changes in them: a file for each library.

No other module names a private part: tests/runtime/seams/ reads all of them. Each entry of a file's `SEAMS` says
what is used or changed and what happens without it, and has a check there. `VERSIONS` are the releases that a file was
reviewed for. Where another release has moved a part, importing this app goes on: what is built on the part is left out,
which the log says once, or raises `Moved` when it is used.
"""

import functools
import importlib
import importlib.metadata
import logging
from dataclasses import dataclass
from typing import Any

from hfjax_app.errors import ModelUnavailable

_log = logging.getLogger(__name__)

_FILES = {"uvicorn": "server", "h11": "server"}  # libraries whose seams are in a file of another name


@dataclass(frozen=True, kw_only=True)
class Seam:
    """One place where this app and a library's inside meet.

    Args:
        name: unique; the check has the same name.
        what: the private part that is used, or the part that is changed.
        without: what the library does without the change, or what this app lacks where the part has moved.
        file: the code, below hfjax_app/; "": the file that lists it.
    """

    name: str
    what: str
    without: str
    file: str = ""


class Moved(ModelUnavailable):
    """The installed release of a library lacks a part that can't be left out; names the release that has it."""


def part(where: str, *, without: str) -> Any:
    """A private part of a library.

    Args:
        where: "module:name", "module:name.attribute", or "module:".
        without: what is left out where the part is missing, for the log.

    Returns:
        The part; None: the installed release does not have it. The log says so once.
    """
    try:
        return _found(where)
    except (ImportError, AttributeError):
        missing(where, without)
        return None


def needed(where: str) -> Any:
    """A private part that can't be left out: where it is missing, a class in its place that can't be called.

    Args:
        where: as for `part`.
    """
    try:
        return _found(where)
    except (ImportError, AttributeError):

        class Missing:
            def __new__(cls, *_: Any, **__: Any) -> Any:
                raise moved(where)

        return Missing


def moved(where: str) -> Moved:
    """The error for a part that is not there."""
    library = where.partition(":")[0].partition(".")[0]
    reviewed = importlib.import_module(f"{__name__}.{_FILES.get(library, library)}").VERSIONS[library]
    return Moved(
        f"{library} {importlib.metadata.version(library)} has no {where}, which this app needs: it was made for "
        f"{library} {reviewed} (pip install {library}=={reviewed})"
    )


@functools.cache
def missing(where: str, without: str) -> None:
    """Say once in the log that a part is not there."""
    _log.warning("%s is not in this release: %s", where, without)


def replace(where: str, new: Any, *, without: str | None) -> None:
    """Put something of ours in the place of a library's part, in the whole process.

    Args:
        where: as for `part`.
        new: takes its place.
        without: what happens where the part has moved, for the log; None: that must not be.

    Raises:
        Moved: the part is not there, and `without` is None.
    """
    module, _, path = where.partition(":")
    holder, _, name = path.rpartition(".")
    try:
        _found(where)
    except (ImportError, AttributeError):
        if without is None:
            raise moved(where) from None
        missing(where, without)
    else:
        setattr(_found(f"{module}:{holder}"), name, new)


def _found(where: str) -> Any:
    module, _, path = where.partition(":")
    return functools.reduce(getattr, filter(None, path.split(".")), importlib.import_module(module))
