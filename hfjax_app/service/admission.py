"""Admission: which requests may come in, and how many of each client and for each model.

Every door asks here: Gradio's events, and plain routes by `with admission.enter(client, "chat"):`. Queues decide the
order of service, by `hfjax_app/line.py`.
"""

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

from hfjax_app.backends import Backend, Backends
from hfjax_app.backends.backend import Models
from hfjax_app.client import Client
from hfjax_app.errors import Draining, Overloaded
from hfjax_app.limits import (
    CHAT_AT_ONCE,
    EVENTS_WAITING,
    IMAGES_AT_ONCE,
    LISTS_WAITING,
    RETRY_AFTER_S,
    SENTIMENT_AT_ONCE,
    ZERO_SHOT_AT_ONCE,
)
from hfjax_app.service.usage import Usage

# Lines by name, with the requests that run and wait in each for one process of their models. Others, such as those of
# a page's own small events, hold EVENTS_WAITING.
LINES = {
    "chat": CHAT_AT_ONCE + EVENTS_WAITING,
    "zero-shot": ZERO_SHOT_AT_ONCE + EVENTS_WAITING,
    "sentiment": SENTIMENT_AT_ONCE + EVENTS_WAITING,
    "sentiment-many": LISTS_WAITING + EVENTS_WAITING,
    "images": IMAGES_AT_ONCE + EVENTS_WAITING,
}


class Admission:
    """Counts requests from their arrival to their end.

    Args:
        backends: one of a line's models must be ready.
        client_requests: the most requests of a client that run and wait.
        usage: the clients' tokens of today.
    """

    def __init__(self, backends: Backends, client_requests: int, usage: Usage):
        self._backends, self._client_requests = backends, client_requests
        self._usage = usage
        self._of_clients: Counter[str] = Counter()
        self._of_lines: Counter[str] = Counter()
        self._counting = threading.Lock()
        self._draining = False

    @property
    def is_draining(self) -> bool:
        return self._draining

    @property
    def inside(self) -> int:
        """Requests that run or wait."""
        return self._of_lines.total()

    def of_line(self, line: str) -> int:
        """Requests that run or wait in this line."""
        return self._of_lines[line]

    def drain(self) -> None:
        """Refuse requests from now on."""
        self._draining = True

    def models(self, line: str) -> Models[Any] | None:
        """The models of a line; None for a line without one."""
        backends = self._backends
        by_line: Mapping[str, Models[Any]] = {
            "chat": backends.chat_models,
            "sentiment": backends.sentiment_models,
            "sentiment-many": backends.sentiment_models,
            "images": backends.image_models,
        }
        return by_line.get(line)

    def _most(self, line: str) -> int:
        """The requests that run and wait in this line: so many for each process that serves its models."""
        models = self.models(line)
        return LINES.get(line, EVENTS_WAITING) * (1 if models is None else self._backends.processes(models.kind))

    def enter(self, client: Client, line: str, backend: Backend[Any] | None = None) -> "AdmittedRequest":
        """Let a request in. Its caller releases the place in every case.

        Args:
            client: who asks.
            line: one of LINES, or another name.
            backend: the model that the request names; None: any of the line's.

        Raises:
            Draining: the server is stopping.
            ModelUnavailable: the model warms up or is gone.
            Overloaded: the client has its share already, its quota is used up, or the line is full.
        """
        if self._draining:
            raise Draining("the server is stopping: try again in a moment")
        if backend is None and (models := self.models(line)) is not None:
            backend = models.usable
        if backend is not None:
            backend.get()
        self._usage.check(client)
        most = self._most(line)
        with self._counting:
            if self._of_clients[client.id] >= self._client_requests:
                share = f"{self._client_requests} of your requests run or wait already"
                raise Overloaded(f"{share}: try again when one has ended", RETRY_AFTER_S)
            if self._of_lines[line] >= most:
                raise Overloaded(f"too many wait already: {most} in this line; try again later", RETRY_AFTER_S)
            self._of_clients[client.id] += 1
            self._of_lines[line] += 1
        return AdmittedRequest(self, client, line)

    def leave(self, client: Client, line: str) -> None:
        """Count a request out; `AdmittedRequest.release` calls it once."""
        with self._counting:
            for counter, name in ((self._of_clients, client.id), (self._of_lines, line)):
                counter[name] -= 1
                if not counter[name]:
                    del counter[name]


class AdmittedRequest:
    """An admitted request; `with` or `release` gives its place back, once."""

    def __init__(self, admission: Admission, client: Client, line: str):
        self.client, self.line = client, line
        self._admission: Admission | None = admission

    def release(self) -> None:
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.leave(self.client, self.line)

    def __enter__(self) -> "AdmittedRequest":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
