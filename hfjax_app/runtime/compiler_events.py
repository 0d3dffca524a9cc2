"""What jax's monitoring tells of its compiler: compilations, hits of its cache, and the seconds that these save."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

from hfjax_app.runtime.seams.jax import CACHE_HIT, COMPILED, SECONDS_SAVED


class CompilerCount:
    """Counts compilations and cache hits of jax in this process, in all threads, after `start`."""

    def __init__(self) -> None:
        self._events: list[str] = []  # several threads append; a sum would lose some

    def start(self) -> None:
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        jax.monitoring.register_event_listener(self._listen)

    @property
    def compilations(self) -> int:
        """All compilations, including cache hits."""
        return self._events.count(COMPILED)

    @property
    def from_cache(self) -> int:
        return self._events.count(CACHE_HIT)

    def _listen(self, event: str, *_: Any, **__: Any) -> None:
        if event in (COMPILED, CACHE_HIT):
            self._events.append(event)


@contextmanager
def cache_hits() -> Iterator[list[float]]:
    """The seconds that each hit of the persistent cache saves in this thread, while the block runs."""
    saved: list[float] = []
    thread = threading.get_ident()

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == SECONDS_SAVED and threading.get_ident() == thread:
            saved.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield saved
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
