"""A queue that admits a limited number of requests at a time, round robin between clients."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from hfjax_app.line import Turns


@dataclass(frozen=True, kw_only=True, eq=False)
class Ticket:
    """A request in the queue, or served."""

    client: str


class AdmissionQueue:
    """Admits at most `capacity` requests at a time; the others wait in order and know their place.

    Args:
        capacity: how many requests are served at the same time.
    """

    def __init__(self, capacity: int):
        self._capacity = capacity
        self._served: set[Ticket] = set()
        self._waiting: Turns[Ticket] = Turns(lambda ticket: ticket.client)
        self._moved = threading.Condition()

    def join(self, client: str = "") -> Ticket:
        """A ticket in the client's turn. The caller must return it with `leave`."""
        ticket = Ticket(client=client)
        with self._moved:
            self._waiting.append(ticket)
            self._admit()
        return ticket

    def leave(self, ticket: Ticket) -> None:
        with self._moved:
            if ticket in self._served:
                self._served.remove(ticket)
            else:
                self._waiting.remove(ticket)
            self._admit()
            self._moved.notify_all()

    def wait(self, ticket: Ticket, seconds: float) -> Iterator[int]:
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

    def _admit(self) -> None:
        while self._waiting and len(self._served) < self._capacity:
            self._served.add(self._waiting.pop(0))

    def _has_left(self, ticket: Ticket, place: int) -> bool:
        return self._place(ticket) != place

    def _place(self, ticket: Ticket) -> int:
        return 0 if ticket in self._served else self._waiting.index(ticket) + 1
