"""Errors between processes, as data.

Ray logs an exception of a replica with its message, which may quote what a visitor wrote, and puts a traceback into the
message that the caller sees. So replicas return what they raise.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from hfjax_app import errors
from hfjax_app.errors import HfjaxError, Overloaded, where

_log = logging.getLogger(__name__)

Self = TypeVar("Self")
P = ParamSpec("P")
T = TypeVar("T")


class ReplicaFailed(Exception):
    """A replica met an error of its own; the message says where, and quotes no value."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """What a replica raised.

    Attributes:
        kind: the class of the error in `hfjax_app/errors.py`; empty for any other error.
        message: the error's; for other errors the place in the code.
        retry_after_s: of Overloaded.
    """

    kind: str
    message: str
    retry_after_s: int = 0

    @classmethod
    def of(cls, error: Exception) -> "Refusal":
        if not isinstance(error, HfjaxError):
            _log.error("a request failed with %s", where(error))
            return cls(kind="", message=where(error))
        retry_after_s = error.retry_after_s if isinstance(error, Overloaded) else 0
        return cls(kind=type(error).__name__, message=str(error), retry_after_s=retry_after_s)

    def error(self) -> Exception:
        """The error again."""
        kind: type[Exception] | None = getattr(errors, self.kind, None) if self.kind else None
        if kind is None:
            return ReplicaFailed(self.message)
        return Overloaded(self.message, self.retry_after_s) if kind is Overloaded else kind(self.message)


def in_thread(
    method: Callable[Concatenate[Self, P], T],
) -> Callable[Concatenate[Self, P], Coroutine[Any, Any, "T | Refusal"]]:
    """A replica's method that runs a blocking one in a thread, and returns what it raises."""

    @functools.wraps(method)
    async def call(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> "T | Refusal":
        try:
            return await asyncio.to_thread(method, self, *args, **kwargs)
        except Exception as error:
            return Refusal.of(error)

    return call
