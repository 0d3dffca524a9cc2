"""Calls of programs side by side, as many at once as serves the device well."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Calls:
    """Makes calls of programs, each in a thread, as many at once as the device is served well by.

    Args:
        name: of the threads.
        at_once: calls at the same time, at least 1.
    """

    def __init__(self, name: str, at_once: int):
        self.at_once = at_once
        self._others = ThreadPoolExecutor(max(1, at_once - 1), name)  # the caller's thread makes the first call
        self._here = threading.local()

    def together(self, call: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
        """`call` of each item (one or more), at the same time; returns or raises when all of them have ended.

        Inside of a call that has others beside it, one after another: nothing is idle then.
        """
        if len(items) == 1 or getattr(self._here, "others", False):
            return [call(item) for item in items]
        first, *others = items
        waiting = [self._others.submit(self._beside_others, call, item) for item in others]
        try:
            result = self._beside_others(call, first)
        finally:
            wait(waiting)
        return [result, *(future.result() for future in waiting)]

    def each(self, call: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
        """`call` of each item (one or more), begun in this order; whoever has ended one begins the next.

        Where one raises, no more are begun, and this raises it.
        """
        waiting = deque(enumerate(items))
        results: list[Any] = [None] * len(items)

        def work(_: None) -> None:
            while True:
                try:
                    number, item = waiting.popleft()
                except IndexError:  # not asked before, because the other thread may take the last one in between
                    return
                try:
                    results[number] = call(item)
                except BaseException:
                    waiting.clear()
                    raise

        if len(items) == 1 or getattr(self._here, "others", False):
            work(None)
            return results
        helpers = [self._others.submit(self._beside_others, work, None) for _ in range(self.at_once - 1)]
        try:
            self._beside_others(work, None)
        finally:
            begun = [helper for helper in helpers if not helper.cancel()]  # the others help somebody else
            wait(begun)
        for helper in begun:
            helper.result()
        return results

    def groups(self, items: Sequence[_Item]) -> list[Sequence[_Item]]:
        """The items in order, `at_once` of them at a time."""
        return [items[at : at + self.at_once] for at in range(0, len(items), self.at_once)]

    def _beside_others(self, call: Callable[[_Item], _Result], item: _Item) -> _Result:
        self._here.others = True
        try:
            return call(item)
        finally:
            self._here.others = False
