"""Results that wait for their readers: bounded by age, and by bytes for each client.

Takes the place of Gradio's store, which holds the 2,000 newest sessions of all clients, whatever their size.
"""

import asyncio
import time
from collections import Counter, deque
from typing import Any

from hfjax_app.client import Client
from hfjax_app.limits import RESULTS_BYTES, RESULTS_EMPTY_KEPT_S, RESULTS_KEPT_S, RESULTS_TOTAL_BYTES
from hfjax_app.runtime.seams.gradio import EventMessage

_OVERHEAD = 1_024  # bytes of a message or of an empty inbox


class Inbox(asyncio.Queue[EventMessage]):
    """The messages of one session that were not read yet.

    Attributes:
        client: whose session it is; others can't read it.
        pending: ids of the session's events whose last message was not read.
        readers: streams that read it.
        used: the time of the latest change.
        bytes: of the messages, estimated.
        is_dropped: nothing reads it any more.
    """

    def __init__(self, results: "WaitingResults", client: Client):
        super().__init__()
        self.client = client
        self.pending: set[str] = set()
        self.readers = 0
        self.used = time.monotonic()
        self.bytes = 0
        self.is_dropped = False
        self._sizes: deque[int] = deque()  # of the messages, as they were counted
        self._results = results

    def _put(self, item: EventMessage) -> None:
        self._sizes.append(size_of(item))
        super()._put(item)
        self._count(self._sizes[-1])

    def _get(self) -> EventMessage:
        item: EventMessage = super()._get()
        self._count(-self._sizes.popleft())
        return item

    async def next(self, seconds: float) -> EventMessage | None:
        """The next message; None after so many seconds without one."""
        try:
            async with asyncio.timeout(seconds):  # not wait_for, which may lose a message that comes with the timeout
                return await self.get()
        except TimeoutError:
            return None

    def _count(self, change: int) -> None:
        self.used = time.monotonic()
        if not self.is_dropped:
            self.bytes += change
            self._results.count(self, change)


class WaitingResults(dict[str, Inbox]):
    """The inboxes of all sessions, by the session's name, those opened first in front."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes: Counter[str] = Counter()  # by client
        self._total = 0

    def open(self, session: str, client: Client) -> Inbox:
        """The inbox of a client's session; an empty one for a new session.

        Raises:
            PermissionError: the session is another client's.
        """
        inbox = self.get(session)
        if inbox is None:
            inbox = self[session] = Inbox(self, client)
            inbox.bytes = _OVERHEAD
            self.count(inbox, _OVERHEAD)
        elif inbox.client.id != client.id:
            raise PermissionError(session)
        return inbox

    def drop(self, session: str) -> None:
        if (inbox := self.pop(session, None)) is not None:
            inbox.is_dropped = True
            self._add(inbox.client.id, -inbox.bytes)

    def count(self, inbox: Inbox, change: int) -> None:
        """Count bytes of an inbox. Where its client has too many, its oldest results that have no reader are dropped;
        where all clients together have too many, those of the client that has most."""
        client = inbox.client.id
        self._add(client, change)
        while self._bytes[client] > RESULTS_BYTES and self._drop_oldest(client):
            pass
        while self._total > RESULTS_TOTAL_BYTES and self._drop_oldest(self._bytes.most_common(1)[0][0]):
            pass

    def _add(self, client: str, change: int) -> None:
        self._total += change
        self._bytes[client] += change
        if self._bytes[client] <= 0:
            del self._bytes[client]

    def _drop_oldest(self, client: str) -> bool:
        """Whether the client had results that could be dropped."""
        oldest = next((name for name, each in self.items() if each.client.id == client and not each.readers), None)
        if oldest is not None:
            self.drop(oldest)
        return oldest is not None

    def session_of(self, event_id: str) -> str | None:
        """The session with this event among its pending ones."""
        if event_id in self:
            return event_id
        return next((session for session, inbox in self.items() if event_id in inbox.pending), None)

    def expired(self) -> list[str]:
        """The sessions that were not used for too long."""
        now, sessions = time.monotonic(), []
        for session, inbox in self.items():
            kept = RESULTS_KEPT_S if inbox.pending or not inbox.empty() else RESULTS_EMPTY_KEPT_S
            if not inbox.readers and now - inbox.used > kept:
                sessions.append(session)
        return sessions


def size_of(message: EventMessage) -> int:
    """About the bytes that a message takes."""
    return _OVERHEAD + _size(getattr(message, "output", None))


def _size(value: Any) -> int:
    match value:
        case str() | bytes():
            return len(value)
        case dict():
            return 64 + sum(_size(key) + _size(each) for key, each in value.items())
        case list() | tuple():
            return 64 + sum(map(_size, value))
    return 16
