"""Iterate over a blocking iterator from an event loop, each step in a thread."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Executor
from typing import Any


async def iterate_in_thread(steps: Iterator[Any], executor: Executor | None = None) -> AsyncGenerator[Any, None]:
    """Run each step in a thread, and close the iterator whatever happens.

    A thread can't be interrupted: when this generator is closed or cancelled in the middle of a step, the iterator is
    closed as soon as that step is over, so no further step is computed.

    Args:
        steps: a generator, or anything else with `close`; None ends it too.
        executor: whose threads; None: the event loop's own, few of which should wait for long.
    """
    loop = asyncio.get_running_loop()
    step: asyncio.Future[Any] | None = None
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
            step.add_done_callback(lambda done: (done.exception(), steps.close()))
