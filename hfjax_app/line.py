"""The waiting line of everything that serves few at a time: clients take turns, urgent requests first.

`Turns` is the order alone, for those who keep places by themselves (the chat engine's scheduler, Gradio's queue).
"""

import threading
from bisect import insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class Turns(list[T]):
    """A list in the order of service. `append` is the only way to add an item; items may leave from anywhere.

    Clients are served round robin, and first come, first served within each. A client's first item has the turn of the
    item that is served next, and each later one the turn after the one before. So a client with one item waits for at
    most one item of each other client, and the places of items in front of a new one do not change.

    Args:
        client_of: takes an item and returns its client, which must be hashable.
    """

    def __init__(self, client_of: Callable[[T], object]):
        super().__init__()
        self._client_of = client_of
        self._turns: dict[int, int] = {}  # id of an item -> its turn
        self._last: dict[object, int] = {}  # client -> the turn of its newest item

    def append(self, item: T) -> None:
        now = self._turns[id(self[0])] if self else 0
        waiting = {id(other) for other in self}
        self._turns = {key: turn for key, turn in self._turns.items() if key in waiting}
        self._last = {client: turn for client, turn in self._last.items() if turn >= now} if self else {}
        client = self._client_of(item)
        turn = self._turns[id(item)] = max(now, self._last.get(client, now - 1) + 1)
        self._last[client] = turn
        insort(self, item, key=lambda other: self._turns[id(other)])


class Place:
    """A request in a `FairLine`, or served by it. It leaves at the end of its `with` block, or by `leave`."""

    def __init__(self, line: "FairLine", client: object, *, urgent: bool):
        self.client, self.urgent = client, urgent
        self._line = line

    @property
    def number(self) -> int:
        """0: it is served; 1: it is the next one."""
        with self._line.moved:
            return self._line.number(self)

    def wait(self, seconds: float) -> Iterator[int]:
        """Wait to be served. Yields the number when it changes, and at least every `seconds`, so that the caller can
        notice a client that has gone."""
        line, number = self._line, self.number
        while number:
            yield number
            with line.moved:
                line.moved.wait_for(lambda seen=number: line.number(self) != seen, seconds)  # type: ignore[misc]
                number = line.number(self)

    def until_served(self) -> None:
        """Wait to be served, however long; a thread that is interrupted has left."""
        try:
            with self._line.moved:
                self._line.moved.wait_for(lambda: not self._line.number(self))
        except BaseException:
            self.leave()
            raise

    def __enter__(self) -> "Place":
        return self

    def __exit__(self, *error: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Give the place to those behind, whether it was served or not."""
        with self._line.moved:
            self._line.remove(self)


class FairLine:
    """Serves a few requests at a time; the others wait in turns between clients, urgent ones before all others.

    threading's lock and semaphore have no order: who releases one and takes it again at once usually succeeds, so a
    long list or a picture of many steps would be finished before another user's first sentence or step.

    Args:
        capacity: how many are served at the same time.

    Attributes:
        moved: guards the line; notified when someone has left. `number` and `remove` are called with it.
    """

    def __init__(self, capacity: int = 1):
        self._capacity = capacity
        self._served: set[Place] = set()
        self._urgent: Turns[Place] = Turns(lambda place: place.client)
        self._others: Turns[Place] = Turns(lambda place: place.client)
        self.moved = threading.Condition()

    def join(self, client: object = None, *, urgent: bool = False) -> Place:
        """A place in the client's turn.

        Args:
            client: None: a client of its own, so that those without a name are served in the order of arrival.
            urgent: whether it goes before all that are not.
        """
        place = Place(self, object() if client is None else client, urgent=urgent)
        with self.moved:
            (self._urgent if urgent else self._others).append(place)
            self._serve()
        return place

    @contextmanager
    def hold(self, client: object = None, *, urgent: bool = False) -> Iterator[None]:
        """Wait for a place, and hold it for the block. Arguments: as `join`."""
        with self.join(client, urgent=urgent) as place:
            place.until_served()
            yield

    def number(self, place: Place) -> int:
        """See `Place.number`."""
        if place in self._served:
            return 0
        return 1 + (self._urgent.index(place) if place.urgent else len(self._urgent) + self._others.index(place))

    def remove(self, place: Place) -> None:
        """Take a place out of the line, if it is there, and serve those behind it."""
        for places in (self._served, self._urgent, self._others):
            if place in places:
                places.remove(place)
        self._serve()
        self.moved.notify_all()

    def _serve(self) -> None:
        while len(self._served) < self._capacity and (line := self._urgent or self._others):
            self._served.add(line.pop(0))
