"""Fair sharing: a lock that is handed over in the order of arrival, and a line before a room of limited size."""

import threading
from collections import deque
from collections.abc import Iterator


class Turns:
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


class Line:
    """At most `room` at a time; the others wait in order and know their place.

    Args:
        room: how many are served at the same time.
    """

    def __init__(self, room: int):
        self._room = room
        self._line: list[object] = []  # those served, then those who wait
        self._moved = threading.Condition()

    def join(self) -> object:
        """A ticket at the end of the line. Whoever takes one must `leave` with it."""
        ticket = object()
        with self._moved:
            self._line.append(ticket)
        return ticket

    def leave(self, ticket: object) -> None:
        with self._moved:
            self._line.remove(ticket)
            self._moved.notify_all()

    def wait(self, ticket: object, seconds: float) -> Iterator[int]:
        """Ends when it is the ticket's turn; until then yields its place (1: the next one) when that changes, and at
        least every so many seconds, so that one who has gone can be told apart.
        """
        with self._moved:
            place = self._place(ticket)
        while place > 0:
            yield place
            with self._moved:
                self._moved.wait_for(lambda before=place: self._place(ticket) != before, seconds)
                place = self._place(ticket)

    def _place(self, ticket: object) -> int:
        return self._line.index(ticket) - self._room + 1
