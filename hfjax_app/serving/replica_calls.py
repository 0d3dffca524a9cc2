"""Calls of a model's replicas, from the ingress: errors become this app's, and a call that is given up is cancelled.

Ray logs an exception of a replica with its message, which may quote what a visitor wrote, and puts a traceback into the
message that the caller sees. So replicas return what they raise, as data (`Refusal`).
"""

import asyncio
import functools
import logging
import queue
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import aclosing, contextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from ray.exceptions import RayActorError, TaskCancelledError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle

from hfjax_app import errors
from hfjax_app.errors import EngineStopped, HfjaxError, ModelUnavailable, Overloaded, where
from hfjax_app.limits import RETRY_AFTER_S
from hfjax_app.serving.replica_reports import replicas_of

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


class ReplicaCalls:
    """The replicas of one model.

    Args:
        handle: of their deployment.
        loop: the event loop of the ingress, which calls from threads use.
    """

    def __init__(self, handle: DeploymentHandle, loop: asyncio.AbstractEventLoop):
        self._handle, self._loop = handle, loop

    @property
    def deployment(self) -> str:
        name: str = self._handle.deployment_name
        return name

    @property
    def running(self) -> int:
        """Replicas that answer."""
        return len(replicas_of(self.deployment))

    def figure(self, name: str) -> int:
        """The sum of one of the replicas' figures, a few seconds old."""
        return sum(told.get("figures", {}).get(name, 0) for told in replicas_of(self.deployment).values())

    @property
    def activities(self) -> list[dict[str, Any]]:
        """What each replica does, a few seconds old."""
        reports = replicas_of(self.deployment).values()
        return [activity for told in reports if (activity := told.get("activity"))]

    async def ask(self, method: str, *arguments: Any) -> Any:
        """What a method of a replica returns.

        Raises:
            HfjaxError: what the model raises.
            Overloaded: all replicas are busy, and enough requests wait for them.
            EngineStopped: the replica died meanwhile.
            ModelUnavailable: the deployment has failed.
        """
        with self._errors():
            response = self._remote(method, arguments)
            try:
                found = await response
            except BaseException:
                response.cancel()
                raise
            return _checked(found)

    def ask_from_thread(self, method: str, *arguments: Any) -> Any:
        """`ask`, from a thread that may block; not from the event loop's."""
        assert asyncio._get_running_loop() is not self._loop, "it would wait for itself"
        return self.begin(method, *arguments).result()

    def begin(self, method: str, *arguments: Any) -> "Future[Any]":
        """`ask` from any thread: its result to come."""
        return asyncio.run_coroutine_threadsafe(self.ask(method, *arguments), self._loop)

    async def stream(self, method: str, *arguments: Any, session: str = "") -> AsyncGenerator[Any, None]:
        """What a generator of a replica yields. Closing it cancels the call, wherever it is.

        Args:
            session: requests of the same one go to the same replica if they can.

        Raises: as `ask`.
        """
        with self._errors():
            response = self._remote(method, arguments, stream=True, session_id=session)
            has_ended = False
            try:
                async for item in response:
                    yield _checked(item)
                has_ended = True
            finally:
                if not has_ended:
                    response.cancel()

    def stream_from_thread(self, method: str, *arguments: Any, every_s: float) -> Iterator[Any]:
        """`stream` for a thread that may block. Yields None where nothing has come for `every_s` seconds."""
        inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()

        async def pump() -> None:
            try:
                async with aclosing(self.stream(method, *arguments)) as items:
                    async for item in items:
                        inbox.put(item)
            except Exception as error:
                inbox.put(error)
            else:
                inbox.put(_END)

        pumping = asyncio.run_coroutine_threadsafe(pump(), self._loop)
        try:
            while True:
                try:
                    item = inbox.get(timeout=every_s)
                except queue.Empty:
                    yield None
                    continue
                if item is _END:
                    return
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            pumping.cancel()

    def _remote(self, method: str, arguments: tuple[Any, ...], **options: Any) -> Any:
        call = self._handle.options(method_name=method, **options)
        # In an empty context: in that of a request, Ray gives all calls one id, and its router, which goes by it,
        # loses all of them but one.
        return Context().run(call.remote, *arguments)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except BackPressureError:
            raise Overloaded(
                f"every replica of {self.deployment} is busy and enough requests wait: try again later", RETRY_AFTER_S
            ) from None
        except (RayActorError, ReplicaUnavailableError):
            raise EngineStopped(f"the replica of {self.deployment} that answered has died: ask again") from None
        except TaskCancelledError:  # also of a replica that was told to end
            raise EngineStopped(f"the replica of {self.deployment} that answered was stopped: ask again") from None
        except DeploymentUnavailableError:
            raise ModelUnavailable(f"{self.deployment} has no replica that could start") from None


_END = object()


async def with_heartbeats(items: AsyncGenerator[Any, None], every_s: float) -> AsyncGenerator[Any, None]:
    """The items, and None where none has come for `every_s` seconds, so that a caller notices who has left."""
    coming: asyncio.Task[Any] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(_next(items))
            done, _ = await asyncio.wait([coming], timeout=every_s)
            if not done:
                yield None
                continue
            item, coming = coming.result(), None
            if item is _END:
                return
            yield item
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.wait([coming])  # a generator that runs can't be closed
        await items.aclose()


async def _next(items: AsyncGenerator[Any, None]) -> Any:
    return await anext(items, _END)


def _checked(item: Any) -> Any:
    if isinstance(item, Refusal):
        raise item.error()
    return item
