"""Pictures for every kind of client: what decodes files and what draws runs in threads, step by step."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import aclosing
from contextvars import copy_context
from typing import Any, Protocol, TypeVar

from hfjax_app.backends import Backend
from hfjax_app.backends.backend import Models
from hfjax_app.images.interface import ImageModel
from hfjax_app.limits import IMAGES_AT_ONCE

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
# Of all models.
_threads = ThreadPoolExecutor(IMAGES_AT_ONCE, "images")  # waiting requests must not hold up the chat
_reader = ThreadPoolExecutor(1, "image-reader")  # one upload at a time: it may decode to 160 MB


class ClosableIterator(Protocol[T_co]):
    """A generator, or another iterator with `close`."""

    def __next__(self) -> T_co: ...

    def close(self) -> None: ...


class ImagesService:
    """Draws pictures.

    Args:
        models: the image models.
    """

    def __init__(self, models: Models[ImageModel]):
        self._models = models

    def find(self, model: str | None) -> Backend[ImageModel]:
        """The model of this name, which may not be ready; None: the first one. Raises: NotFound."""
        return self._models.find(model)

    async def read(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function that decodes pictures. One thread does so for all requests, one after the other.

        Requests without pictures don't come here, or they would wait for it.
        """
        here = copy_context()  # with the request's sender
        return await asyncio.get_running_loop().run_in_executor(_reader, here.run, function, *arguments)

    async def run(self, backend: Backend[ImageModel], steps: ClosableIterator[T]) -> AsyncGenerator[T, None]:
        """Draw in a thread, step by step.

        Raises:
            ModelUnavailable: the server is stopping, or the model was unloaded.
        """
        async with aclosing(iterate_in_thread(steps, _threads)) as running:
            async for step in running:
                backend.get()
                yield step


async def iterate_in_thread(steps: ClosableIterator[T], executor: Executor | None = None) -> AsyncGenerator[T, None]:
    """Run each step in a thread, and close the iterator in every case.

    A thread can't be interrupted. When this generator is closed or cancelled in the middle of a step, the iterator is
    closed as soon as that step is over, so no further step is computed.

    Args:
        steps: the iterator; a None that it returns ends the iteration too.
        executor: its threads run the steps; None: the event loop's own threads, few of which should wait for long.
    """
    loop = asyncio.get_running_loop()
    step: asyncio.Future[T | None] | None = None

    def close_after(done: asyncio.Future[T | None]) -> None:
        done.exception()  # or asyncio logs an exception that was never retrieved
        steps.close()

    try:
        while True:
            step = loop.run_in_executor(executor, next, steps, None)
            item = await asyncio.shield(step)
            if item is None:
                return
            yield item
    finally:
        if step is None or step.done():
            steps.close()
        else:
            step.add_done_callback(close_after)
