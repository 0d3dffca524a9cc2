"""A waiting line that is fair between clients: round robin, and first come, first served within a client."""

from bisect import insort
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class RoundRobin(list[T]):
    """A list in the order of service. `append` is the only way to add an item; items may leave from anywhere.

    Each item has a turn. A client's first item has the turn of the item that is served next, and each later one the
    turn after the one before. So a client with one item waits for at most one item of each other client, and the places
    of items in front of a new one do not change.

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
