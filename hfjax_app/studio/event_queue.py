"""Gradio's queue, with its faults mended: no client can stop it, fill it, or take another client's turn or results.

Results wait for their readers bounded by age, and by bytes for each client. Gradio's store holds the 2,000 newest
sessions of all clients, whatever their size.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any

import fastapi

from hfjax_app.client import Client, client_of, sent_by
from hfjax_app.errors import where
from hfjax_app.limits import CLIENT_RUNNING, RESULTS_BYTES, RESULTS_EMPTY_KEPT_S, RESULTS_KEPT_S, RESULTS_TOTAL_BYTES
from hfjax_app.line import Turns
from hfjax_app.runtime.seams.gradio import (
    Event,
    EventMessage,
    EventQueue,
    PredictBodyInternal,
    ProcessCompletedMessage,
    Queue,
    id_of,
)
from hfjax_app.service.admission import Admission, AdmittedRequest
from hfjax_app.service.usage import RequestUsage, Usage, request_usage

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


_log = logging.getLogger(__name__)

LogEvent = Callable[[Event, int, float, RequestUsage], None]

CUT = 499  # the status of an event whose client left
SWEEP_S = 5.0  # between two looks for expired results
RESTART_S = 0.1
_STOPPED = "the server lost this request: try again"


class FairQueue(Queue):
    """Gradio's queue for a page whose events come in through `server/gradio_events.py`.

    - Waiting events are served round robin between clients, and a client has at most CLIENT_RUNNING running.
    - Messages go into inboxes that are bounded for each client. A message for a session that is gone is dropped; in
      Gradio it stops the queue.
    - Its loops are started again if they fail; events that ran meanwhile are told.
    - No statistics of events are kept: Gradio computes them with pandas after each event.
    """

    admission: Admission
    usage: Usage
    log_event: LogEvent
    results: WaitingResults
    _closed = False

    def take_over(self, admission: Admission, usage: Usage, log_event: LogEvent) -> None:
        """Set up what Gradio's constructor, which has already run, does not know.

        Gradio makes the queue of a page by itself; `harden` (page.py) then gives that object this class.

        Args:
            admission: of the events.
            usage: counts their times in line.
            log_event: called at an event's end with its HTTP status, its seconds and what it used.
        """
        self.admission = admission
        self.results = WaitingResults()
        self.pending_messages_per_session = self.results  # type: ignore[assignment]
        self.usage, self.log_event = usage, log_event
        self._places: dict[str, AdmittedRequest] = {}  # by the event's id
        self._statuses: dict[str, int] = {}  # of events that have ended

    @property
    def is_running(self) -> bool:
        """Whether events are served: false after `close`, and for a moment before a restart."""
        return not self.stopped

    def waiting_in(self, name: str) -> int:
        """Events that wait in a line."""
        line = self.event_queue_per_concurrency_id.get(name)
        return 0 if line is None else len(line.queue)

    @property
    def is_read_from(self) -> bool:
        """Whether a client reads a stream that has not ended."""
        return any(inbox.readers and (inbox.pending or not inbox.empty()) for inbox in [*self.results.values()])

    def start(self) -> None:
        super().start()
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep())

    def close(self) -> None:
        self._closed = True
        super().close()

    async def start_processing(self) -> None:
        await self._keep_running(super().start_processing)

    async def start_progress_updates(self) -> None:
        await self._keep_running(super().start_progress_updates)

    async def _keep_running(self, loop: Callable[[], Awaitable[None]]) -> None:
        while not self._closed:
            self.stopped = False
            try:
                await loop()  # ends without an error where the other loop failed
            except Exception as error:
                _log.error("the queue of the studio stopped and is started again: %s", where(error))
                for event in [event for job in self.active_jobs for event in job or ()]:
                    self.tell(event, _STOPPED)
            await asyncio.sleep(RESTART_S)

    async def _sweep(self) -> None:
        while not self._closed:
            await asyncio.sleep(SWEEP_S)
            dropped = {event.session_hash for event in self.event_ids_to_events.values()} - self.results.keys()
            for session in [*self.results.expired(), *dropped]:
                await self.forget(session)

    async def push(self, body: PredictBodyInternal, request: fastapi.Request, username: str | None) -> Any:
        """Put a checked event into its line.

        Returns:
            (True, its id, "success"), as Gradio's method.

        Raises:
            PermissionError: the session is another client's.
            Draining, ModelUnavailable, Overloaded: see `Admission.enter`.
        """
        assert body.fn_index is not None
        fn, client = self.blocks.fns[body.fn_index], client_of(request.scope)
        event = Event(body.session_hash, fn, request, username)
        event.data, body.session_hash = body, event.session_hash
        line = self._line(event)
        place = self.admission.enter(client, str(fn.concurrency_id))
        try:
            inbox = self.results.open(event.session_hash, client)
        except PermissionError:
            place.release()
            raise
        self._places[id_of(event)] = place
        inbox.pending.add(id_of(event))
        self.event_ids_to_events[id_of(event)] = event
        line.queue.append(event)
        self.broadcast_estimations(event.concurrency_id, line.queue.index(event))
        return True, id_of(event), "success"

    def _line(self, event: Event) -> EventQueue:
        self.create_event_queue_for_fn(event.fn)
        line = self.event_queue_per_concurrency_id[event.concurrency_id]
        if not isinstance(line.queue, Turns):
            line.queue = Turns(client_of_event)
        return line

    def get_events(self) -> tuple[list[Event], bool, str] | None:
        for name, line in self.event_queue_per_concurrency_id.items():
            if line.concurrency_limit is not None and line.current_concurrency >= line.concurrency_limit:
                continue
            for event in line.queue:
                if self._running(event) < CLIENT_RUNNING:
                    line.queue.remove(event)
                    return [event], False, name
        return None

    def _running(self, event: Event) -> int:
        """How many events of the same client and line run."""
        client = client_of_event(event)
        others = (other for job in self.active_jobs for other in job or ())
        return sum(
            other.concurrency_id == event.concurrency_id and client_of_event(other) == client for other in others
        )

    async def process_events(self, events: list[Event], *arguments: Any) -> None:
        [event] = events
        began = time.monotonic()
        self.usage.add_wait(str(event.concurrency_id), began - event.enqueue_time)
        with sent_by(client_of(event.request.scope)), request_usage() as usage:
            try:
                await super().process_events(events, *arguments)
            finally:
                self._release(event)
                status = self._statuses.pop(id_of(event), CUT)
                self.log_event(event, status, time.monotonic() - event.enqueue_time, usage)

    async def remove_from_queue(self, event_id: str) -> None:
        event = self.event_ids_to_events.get(event_id)
        await super().remove_from_queue(event_id)
        if event is not None and event_id not in self.event_ids_to_events:
            self._release(event)

    async def clean_events(self, *, session_hash: str | None = None, event_id: str | None = None) -> None:
        waiting = [event for line in self.event_queue_per_concurrency_id.values() for event in line.queue]
        await super().clean_events(session_hash=session_hash, event_id=event_id)
        for event in waiting:
            if id_of(event) not in self.event_ids_to_events:
                self._release(event)

    def _release(self, event: Event) -> None:
        if (place := self._places.pop(id_of(event), None)) is not None:
            place.release()

    async def forget(self, session: str) -> None:
        """Drop a session's results, and end its events."""
        self.results.drop(session)
        await self.clean_events(session_hash=session)

    def send_message(self, event: Event, event_message: EventMessage) -> None:
        inbox = self.results.get(event.session_hash)
        if inbox is None:
            event.alive = False  # nothing waits for it; its function is closed at its next item
        elif event.alive:
            event_message.event_id = id_of(event)
            if isinstance(event_message, ProcessCompletedMessage):
                self._statuses[id_of(event)] = 200 if event_message.success else 400
            inbox.put_nowait(event_message)

    def tell(self, event: Event, message: str) -> None:
        """End an event for its client with an error."""
        output = {"error": message, "visible": True, "duration": 10, "title": "That did not work"}
        self.send_message(event, ProcessCompletedMessage(output=output, success=False, title="That did not work"))

    def compute_analytics_summary(self, records: Any) -> dict[str, Any]:
        return {"functions": {}}


def client_of_event(event: Event) -> str:
    return client_of(event.request.scope).id
