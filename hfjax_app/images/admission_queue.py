"""A line before a room of limited size."""

import threading
from collections.abc import Iterator
from functools import partial


class AdmissionQueue:
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
                self._moved.wait_for(partial(self._has_left, ticket, place), seconds)
                place = self._place(ticket)

    def _has_left(self, ticket: object, place: int) -> bool:
        return self._place(ticket) != place

    def _place(self, ticket: object) -> int:
        return self._line.index(ticket) - self._room + 1
