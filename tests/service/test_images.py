"""Iterating over a blocking iterator from an event loop. Without a browser, whose own event loop would conflict."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import aclosing, suppress

import pytest

from hfjax_app.errors import ModelUnavailable
from hfjax_app.service.images import iterate_in_thread


class Steps(Iterator[int]):
    """Steps that wait for `may_end`, and record how many began and whether they were closed."""

    def __init__(self) -> None:
        self.begun, self.closed = 0, threading.Event()
        self.in_step, self.may_end = threading.Event(), threading.Event()

    def __next__(self) -> int:
        self.begun += 1
        self.in_step.set()
        assert self.may_end.wait(60)
        return self.begun

    def close(self) -> None:
        self.closed.set()


def test_cancelled_in_the_middle_of_a_step_ends_with_that_step() -> None:
    """The thread can't be interrupted and a running generator can't be closed, so it is closed after the step."""
    steps = Steps()

    async def cancel_in_a_step() -> None:
        async def draw() -> None:
            async with aclosing(iterate_in_thread(steps)) as moments:
                async for _ in moments:
                    pass

        task = asyncio.create_task(draw())
        await asyncio.to_thread(steps.in_step.wait, 60)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert not steps.closed.is_set()
        steps.may_end.set()
        assert await asyncio.to_thread(steps.closed.wait, 60)

    asyncio.run(cancel_in_a_step())
    assert steps.begun == 1


def test_a_failing_step_raises_its_error() -> None:
    def steps() -> Iterator[int]:
        yield 1
        raise ModelUnavailable("not a number")

    async def draw() -> list[int]:
        return [step async for step in iterate_in_thread(steps())]

    with pytest.raises(ModelUnavailable, match="not a number"):
        asyncio.run(draw())
