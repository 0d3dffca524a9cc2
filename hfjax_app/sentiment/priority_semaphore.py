"""Who may call the device next: single texts go before the batches of a long list."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class PrioritySemaphore:
    """So many callers at once, of two classes.

    threading.Semaphore knows no order: a long list that releases it between two batches and asks again would usually
    get it again, and a visitor with one sentence would wait for thousands of others.

    Args:
        places: how many.
    """

    def __init__(self, places: int = 1) -> None:
        self._changed = threading.Condition()
        self._free = places
        self._urgent = 0

    @contextmanager
    def turn(self, *, urgent: bool) -> Iterator[None]:
        """Hold a place for the block. Urgent callers are served before the others."""
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
