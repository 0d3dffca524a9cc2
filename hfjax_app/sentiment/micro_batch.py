"""Micro-batching: single texts that several users send within a few milliseconds share one device call."""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from hfjax_app.errors import EngineStopped
from hfjax_app.sentiment.interface import Prediction

WINDOW_S = 0.002
LIMIT = 64  # the most texts of one call

_Request = tuple[str, "Future[Prediction]"]


class MicroBatcher:
    """A thread that gathers requests and classifies them together.

    Args:
        predict: texts -> a prediction or an exception for each; an exception fails its own text only.
        window_s: how long the first request of a batch waits for others, in seconds.
    """

    def __init__(self, predict: Callable[[list[str]], list[Prediction | Exception]], *, window_s: float = WINDOW_S):
        self._predict = predict
        self._window_s = window_s
        self._inbox: queue.Queue[_Request | None] = queue.Queue()
        self._lock = threading.Lock()  # no request may follow the end marker
        self._open = True
        self._thread = threading.Thread(target=self._run, name="sentiment", daemon=True)
        self._thread.start()

    def submit(self, text: str) -> "Future[Prediction]":
        """Queue a checked text. Admission limits how many wait.

        Raises:
            EngineStopped: `stop` was called.
        """
        future: Future[Prediction] = Future()
        with self._lock:
            if not self._open:
                raise EngineStopped("the classifier was stopped")
            self._inbox.put((text, future))
        return future

    def stop(self) -> None:
        """Classify the texts in the queue and end the thread. May be called twice."""
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
                predictions = self._predict([text for text, _ in live])
            except Exception as error:  # a bug: every waiting request fails with it, and the thread goes on
                predictions = [error] * len(live)
            for (_, future), prediction in zip(live, predictions, strict=True):
                if isinstance(prediction, Exception):
                    future.set_exception(prediction)
                else:
                    future.set_result(prediction)

    def _gather(self, first: _Request) -> tuple[list[_Request], bool]:
        """The requests within the window that the first one opens, and whether the end marker was among them."""
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
