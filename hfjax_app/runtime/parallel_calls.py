"""Parallel calls of programs, a limited number at a time. `transforms.py` chooses the number."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Calls:
    """Runs calls of programs in threads.

    Args:
        name: of the threads.
        at_once: the number of parallel calls, at least 1.
    """

    def __init__(self, name: str, at_once: int):
        self.at_once = at_once
        self._pool = ThreadPoolExecutor(max(1, at_once - 1), name)  # the caller's thread runs calls too
        self._local = threading.local()

    def together(self, call: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
        """`call` of each item (one or more), in parallel; returns or raises when all calls have ended.

        Inside a parallel call the calls are sequential: all threads are busy then.
        """
        if len(items) == 1 or getattr(self._local, "in_parallel", False):
            return [call(item) for item in items]
        first, *others = items
        waiting = [self._pool.submit(self._in_parallel, call, item) for item in others]
        try:
            result = self._in_parallel(call, first)
        finally:
            wait(waiting)
        return [result, *(future.result() for future in waiting)]

    def each(self, call: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
        """`call` of each item (one or more), started in this order; a free thread starts the next one.

        After an exception no more calls are started, and the exception is raised.
        """
        waiting = deque(enumerate(items))
        results: list[Any] = [None] * len(items)

        def work(_: None) -> None:
            while True:
                try:
                    number, item = waiting.popleft()
                except IndexError:  # a check beforehand would race with the other threads
                    return
                try:
                    results[number] = call(item)
                except BaseException:
                    waiting.clear()
                    raise

        if len(items) == 1 or getattr(self._local, "in_parallel", False):
            work(None)
            return results
        workers = [self._pool.submit(self._in_parallel, work, None) for _ in range(self.at_once - 1)]
        try:
            self._in_parallel(work, None)
        finally:
            started = [worker for worker in workers if not worker.cancel()]  # cancelled: the pool serves another caller
            wait(started)
        for worker in started:
            worker.result()
        return results

    def groups(self, items: Sequence[_Item]) -> list[Sequence[_Item]]:
        """The items in order, in groups of `at_once`."""
        return [items[at : at + self.at_once] for at in range(0, len(items), self.at_once)]

    def _in_parallel(self, call: Callable[[_Item], _Result], item: _Item) -> _Result:
        self._local.in_parallel = True
        try:
            return call(item)
        finally:
            self._local.in_parallel = False
