"""A lock that is handed over in the order of arrival."""

import threading
from collections import deque


class FairLock:
    """A fair mutual exclusion, used as a context manager.

    threading.Lock is not fair: a thread that releases it and asks again at once usually gets it again, so that one
    user's picture would be drawn to the end before another's first step.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._line: deque[threading.Event] = deque()  # the first one holds the lock

    def __enter__(self) -> None:
        turn = threading.Event()
        with self._mutex:
            self._line.append(turn)
            if self._line[0] is turn:
                turn.set()
        try:
            turn.wait()
        except BaseException:  # Ctrl-C while waiting: those behind must not wait for this one
            self._leave(turn)
            raise

    def __exit__(self, *_: object) -> None:
        self._leave(self._line[0])

    def _leave(self, turn: threading.Event) -> None:
        with self._mutex:
            self._line.remove(turn)
            if self._line:
                self._line[0].set()
