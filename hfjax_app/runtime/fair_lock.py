"""A lock that threads get in the order of arrival."""

import threading
from collections import deque


class FairLock:
    """Fair mutual exclusion, used as a context manager.

    threading.Lock is not fair: a thread that releases it and acquires it again at once usually succeeds, so one user's
    picture would be finished before another user's first step.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._queue: deque[threading.Event] = deque()  # the first one holds the lock

    def __enter__(self) -> None:
        acquired = threading.Event()
        with self._mutex:
            self._queue.append(acquired)
            if self._queue[0] is acquired:
                acquired.set()
        try:
            acquired.wait()
        except BaseException:  # Ctrl-C while waiting: later threads must not wait for this one
            self._leave(acquired)
            raise

    def __exit__(self, *_: object) -> None:
        self._leave(self._queue[0])

    def _leave(self, acquired: threading.Event) -> None:
        with self._mutex:
            self._queue.remove(acquired)
            if self._queue:
                self._queue[0].set()
