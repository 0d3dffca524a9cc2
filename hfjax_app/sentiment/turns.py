"""Who may call the device next: single texts go before the batches of a long list."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Mutual exclusion with two classes of callers.

    threading.Lock knows no order: a long list that releases it between two batches and asks again would usually get it
    again, and a visitor with one sentence would wait for thousands of others.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = False
        self._urgent = 0

    @contextmanager
    def turn(self, *, urgent: bool) -> Iterator[None]:
        """Hold the device for the block. Urgent callers are served before the others."""
        with self._changed:
            self._urgent += urgent
            try:
                self._changed.wait_for(lambda: not self._taken and (urgent or not self._urgent))
                self._taken = True
            finally:
                self._urgent -= urgent
        try:
            yield
        finally:
            with self._changed:
                self._taken = False
                self._changed.notify_all()
