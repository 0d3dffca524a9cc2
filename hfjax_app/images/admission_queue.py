"""A queue that admits a limited number of requests at a time, in the order in which they came."""

import threading
from collections.abc import Iterator
from functools import partial


class AdmissionQueue:
    """Admits at most `capacity` requests at a time; the others wait in order and know their place.

    Args:
        capacity: how many requests are served at the same time.
    """

    def __init__(self, capacity: int):
        self._capacity = capacity
        self._tickets: list[object] = []  # of the requests being served, then of those that wait
        self._moved = threading.Condition()

    def join(self) -> object:
        """A ticket at the end of the queue. The caller must return it with `leave`."""
        ticket = object()
        with self._moved:
            self._tickets.append(ticket)
        return ticket

    def leave(self, ticket: object) -> None:
        with self._moved:
            self._tickets.remove(ticket)
            self._moved.notify_all()

    def wait(self, ticket: object, seconds: float) -> Iterator[int]:
        """Wait for admission.

        Args:
            ticket: from `join`.
            seconds: the longest time between two places.

        Yields:
            the ticket's place (1: the next one) when it changes, and at least every `seconds`, so that the caller can
            notice a client that has gone.
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
        return self._tickets.index(ticket) - self._capacity + 1
