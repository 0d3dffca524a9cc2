"""Calls side by side: on a CPU two at once, because a small program alone leaves the second core idle half the time."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import jax

_ON_CPU = 2


class Calls:
    """Makes calls that wait for the device, each in a thread, as many at once as the device is served well by.

    Args:
        name: of the threads.
        devices: how many devices each program runs on; several are busy with one program.

    Attributes:
        at_once: 2 on a CPU, else 1.
    """

    def __init__(self, name: str, devices: int = 1):
        self.at_once = _ON_CPU if jax.default_backend() == "cpu" and devices == 1 else 1
        self._others = ThreadPoolExecutor(_ON_CPU - 1, name)  # who calls makes the first call himself

    def together(self, call: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """`call` of each item (one or more), at the same time; returns or raises when all of them have ended."""
        first, *others = items
        waiting = [self._others.submit(call, item) for item in others]
        try:
            result = call(first)
        finally:
            wait(waiting)
        return [result, *(future.result() for future in waiting)]

    def groups(self, items: Sequence[Any]) -> list[Sequence[Any]]:
        """The items in order, `at_once` of them at a time."""
        return [items[at : at + self.at_once] for at in range(0, len(items), self.at_once)]
