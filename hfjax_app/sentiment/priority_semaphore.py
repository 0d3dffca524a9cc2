"""A semaphore with two priorities: single texts go before the batches of a long list."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class PrioritySemaphore:
    """Admits a limited number of callers at a time, urgent ones first.

    threading.Semaphore has no order: a long list that releases it between two batches would usually acquire it again at
    once, and a visitor with one sentence would wait for thousands of others.

    Args:
        places: how many callers at a time.
    """

    def __init__(self, places: int = 1) -> None:
        self._changed = threading.Condition()
        self._free = places
        self._urgent = 0

    @contextmanager
    def hold(self, *, urgent: bool) -> Iterator[None]:
        """Hold a place for the block. Urgent callers go before the others."""
        with self._changed:
            self._urgent += urgent
            try:
                self._changed.wait_for(lambda: self._free and (urgent or not self._urgent))
                self._free -= 1
            finally:
                self._urgent -= urgent
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()
