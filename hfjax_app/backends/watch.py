"""Watches models that serve, and starts those again that stop by themselves.

A model that stops is logged with its cause and started again, at most once a minute. After MOST_DEATHS within
DEATHS_S the process should end: its device is likely to be broken.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from hfjax_app.backends.backend import Backend
from hfjax_app.backends.registry import Backends

_log = logging.getLogger(__name__)

LOOK_S = 0.5
RESTART_S = 60.0  # the least time between two restarts
MOST_DEATHS, DEATHS_S = 3, 600.0


class Watch:
    """A thread that looks at every model twice a second.

    Args:
        backends: the models.
        give_up: called once, with the reason, when a model has died too often.
    """

    def __init__(self, backends: Backends, give_up: Callable[[str], None]):
        self._backends, self._give_up = backends, give_up
        self._deaths: deque[float] = deque()
        self._restarted = -RESTART_S
        self._known: set[tuple[int, int]] = set()  # deaths that were logged: the model, and which of its lives
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> "Watch":
        self._thread.start()
        return self

    def stop(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            for backend in self._backends.all:
                if backend.has_died and not self._tended(backend):
                    return

    def _tended(self, backend: Backend[Any]) -> bool:
        """Log a death and start the model again, if it is time; False if it has died too often."""
        now = time.monotonic()
        if (death := (id(backend), backend.restarts)) not in self._known:
            self._known.add(death)
            self._deaths.append(now)
            _log.error("%s model %s died: %s", backend.kind, backend.name, backend.error)
            while now - self._deaths[0] > DEATHS_S:
                self._deaths.popleft()
            if len(self._deaths) >= MOST_DEATHS:
                reason = f"{backend.kind} died {MOST_DEATHS} times in {DEATHS_S / 60:g} minutes: {backend.error}"
                self._give_up(reason)
                return False
        if now - self._restarted >= RESTART_S:
            self._restarted = now
            backend.restart()
            if not backend.has_died:
                _log.warning("%s model %s was started again", backend.kind, backend.name)
        return True
