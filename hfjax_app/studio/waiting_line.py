"""A line for long work: some visitors at a time, the others in order of arrival. Used on one event loop only."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class WaitingLine:
    """
    Args:
        at_once: how many may work at the same time.
    """

    def __init__(self, at_once: int):
        self._at_once = at_once
        self._visitors: list[object] = []

    @contextmanager
    def joined(self) -> Iterator[Callable[[], int]]:
        """Stand in the line for the block; the value tells the place, 0 for those that may work."""
        visitor = object()
        self._visitors.append(visitor)
        try:
            yield lambda: max(0, self._visitors.index(visitor) + 1 - self._at_once)
        finally:
            self._visitors.remove(visitor)
