"""Micro-batching: single texts that several users send within a few milliseconds share one device call."""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from hfjax_app.errors import EngineStopped, RequestRejected
from hfjax_app.limits import SENTIMENT_QUEUE
from hfjax_app.sentiment.prediction import Verdict

WINDOW_S = 0.002
LIMIT = 64  # texts of one call

_Request = tuple[str, "Future[Verdict]"]


class MicroBatcher:
    """One thread that gathers requests and judges them together.

    Args:
        judge: texts -> a verdict or an exception for each; one text's exception is its own affair.
        window_s: how long the first request of a batch waits for others, in seconds.
    """

    def __init__(self, judge: Callable[[list[str]], list[Verdict | Exception]], *, window_s: float = WINDOW_S):
        self._judge = judge
        self._window_s = window_s
        self._inbox: queue.Queue[_Request | None] = queue.Queue(SENTIMENT_QUEUE)
        self._lock = threading.Lock()  # nothing is put behind the end
        self._open = True
        self._thread = threading.Thread(target=self._run, name="sentiment", daemon=True)
        self._thread.start()

    def submit(self, text: str) -> "Future[Verdict]":
        """Put a checked text in line.

        Raises:
            RequestRejected: the line is full.
            EngineStopped: `stop` was called.
        """
        future: Future[Verdict] = Future()
        with self._lock:
            if not self._open:
                raise EngineStopped("the classifier was stopped")
            try:
                self._inbox.put_nowait((text, future))
            except queue.Full:
                raise RequestRejected(
                    f"the classifier is busy: {SENTIMENT_QUEUE:,} texts are waiting; try again"
                ) from None
        return future

    def stop(self) -> None:
        """Answer what is in line and end the thread. May be called twice."""
        with self._lock:
            was_open, self._open = self._open, False
        if was_open:
            self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            first = self._inbox.get()
            if first is None:
                return
            requests, is_last = self._gather(first)
            live = [(text, future) for text, future in requests if future.set_running_or_notify_cancel()]
            if not live:
                continue
            try:
                verdicts = self._judge([text for text, _ in live])
            except Exception as error:  # a bug: whoever waits must hear of it, and the thread lives on
                verdicts = [error] * len(live)
            for (_, future), verdict in zip(live, verdicts, strict=True):
                if isinstance(verdict, Exception):
                    future.set_exception(verdict)
                else:
                    future.set_result(verdict)

    def _gather(self, first: _Request) -> tuple[list[_Request], bool]:
        """The requests that come within the window of the first, and whether the end was among them."""
        requests, deadline = [first], time.monotonic() + self._window_s
        while len(requests) < LIMIT:
            try:
                request = self._inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if request is None:
                return requests, True
            requests.append(request)
        return requests, False
