"""Iterate over a blocking iterator from an event loop, each step in a thread."""

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import Executor
from typing import Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class ClosableIterator(Protocol[T_co]):
    """A generator, or another iterator with `close`."""

    def __next__(self) -> T_co: ...

    def close(self) -> None: ...


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
