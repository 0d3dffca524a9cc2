"""Calls side by side: on a CPU two at once, because a small program alone leaves the second core idle half the time."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import jax

from hfjax_app.runtime.mesh import platform_of

_ON_CPU = 2


class Calls:
    """Makes calls that wait for the device, each in a thread, as many at once as the device is served well by.

    Args:
        name: of the threads.
        mesh: the devices that programs run on together, which are busy with one; None: jax's default device.

    Attributes:
        at_once: 2 on one CPU device, else 1.
    """

    def __init__(self, name: str, mesh: jax.sharding.Mesh | None = None):
        alone = mesh is None or mesh.size == 1
        self.at_once = _ON_CPU if alone and platform_of(mesh) == "cpu" else 1
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

    def groups(self, items: Sequence[Any], each: int = 1) -> list[Sequence[Any]]:
        """The items in order, as many at a time as make `at_once` calls, of which an item makes `each` at once."""
        size = max(1, self.at_once // each)
        return [items[at : at + size] for at in range(0, len(items), size)]
