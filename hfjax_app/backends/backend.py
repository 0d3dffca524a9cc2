"""One model of the app: its state, its compiled programs, and, once ready, the object that serves it;
and the models of one kind, by name (`Models`).

`loaders.py` loads the models of each kind.
"""

import contextlib
import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from hfjax_app.embedded import resolve
from hfjax_app.errors import HfjaxError, ModelUnavailable, NotFound, RequestRejected, without_folders
from hfjax_app.runtime import tracing
from hfjax_app.runtime.memory import HeldMemory
from hfjax_app.runtime.process import cache_folder
from hfjax_app.runtime.program_report import ProgramReport
from hfjax_app.runtime.programs import LoadedProgramFailed
from hfjax_app.runtime.warm_up import WarmUp
from hfjax_app.validation import quoted

_FILE = "start-times.json"
_writing = threading.Lock()


class StartTimes:
    """Seconds by model, in a file of the cache folder; where it can't be read or written, nothing is known.

    Args:
        folder: of compiled programs; None: none are kept.
    """

    def __init__(self, folder: Path | None):
        self._path = None if folder is None else folder / _FILE

    def last(self, model: str, *, compiled: bool) -> float | None:
        """The seconds of this model's last start in which programs were compiled, or were not."""
        seconds = self._read().get(_key(model, compiled))
        return seconds if isinstance(seconds, float) else None

    def keep(self, model: str, seconds: float, *, compiled: bool) -> None:
        """Record a start."""
        if self._path is None:
            return
        with _writing, contextlib.suppress(OSError):
            times = json.dumps(self._read() | {_key(model, compiled): round(seconds, 1)})
            handle, unfinished = tempfile.mkstemp(dir=self._path.parent)
            with os.fdopen(handle, "w") as file:
                file.write(times)
            os.replace(unfinished, self._path)

    def _read(self) -> dict[str, object]:
        try:
            times = json.loads(self._path.read_text()) if self._path is not None else {}
        except (OSError, ValueError):
            return {}
        return times if isinstance(times, dict) else {}


def _key(model: str, compiled: bool) -> str:
    return f"{model} {'compiled' if compiled else 'loaded'}"


_log = logging.getLogger(__name__)

T = TypeVar("T")


class Watcher(Protocol):
    """Is told what a loader does."""

    def expect(self, names: Sequence[str], count: int) -> None:
        """These programs are compiled at the start, in order; the model has `count` in all."""

    def record(self, report: ProgramReport) -> None:
        """One more program is ready."""


class Loader(Protocol[T]):
    """How models of one kind are loaded, watched and stopped."""

    def load(self, model: str, watcher: Watcher) -> T:
        """The model with the programs that it needs to serve, each of which was run once.

        Args:
            model: an embedded model's name, a folder, or a hub id.
            watcher: is told about each program.
        """

    def warm_up(self, served: T) -> WarmUp | None:
        """The rest of its programs; None: this process has none of them."""

    def held_memory(self, served: T) -> HeldMemory | None:
        """What it holds on each device; None: it is in another process."""

    def failure(self, served: T) -> str | None:
        """Why a model that was ready stopped serving; None while it serves."""

    def restart(self, served: T) -> None:
        """Serve again with a model that stopped by itself; nothing is loaded or compiled."""

    def stop(self, served: T) -> None:
        """Stop its computations; may be called twice."""


class Backend(Generic[T]):
    """A named model of one kind.

    Args:
        kind: "chat", "sentiment" or "images".
        name: unique among the models of its kind.
        model: an embedded model's name, a folder, or a hub id.
        loader: loads, watches and stops it.

    Attributes:
        reports: the ledger: the programs of this model, in the order in which they became ready.
        expected: how many programs it will have in the end; 0 while that is unknown.
        seconds: the time to get ready, plus that of every program compiled later.
        error: why it can't be used; None while it can.
        restarts: how often it was started again after it had died.
    """

    def __init__(self, *, kind: str, name: str, model: str, loader: Loader[T]):
        self.kind, self.name, self.model = kind, name, model
        self._last_seconds: dict[bool, float | None] = {}  # of the last start, by whether it compiled
        self.reports: list[ProgramReport] = []
        self.expected = 0
        self.seconds = 0.0
        self.error: str | None = None
        self.restarts = 0
        self._loader = loader
        self._served: T | None = None
        self._warm_up: WarmUp | None = None
        self._made_before_ready = 0  # of the reports
        self._at_start: tuple[str, ...] = ()  # names of the programs that are compiled before the model is ready
        self._started_at = 0.0
        self._state = "waiting"
        self._activity = ""  # while it is prepared, and how much of that is done
        self._share: float | None = None
        self._has_died = False

    @property
    def state(self) -> str:
        """ "waiting" (for the models before it), "preparing", "loading", "compiling", "ready" or "failed"."""
        if self._state == "ready" and self._served is not None and (reason := self._loader.failure(self._served)):
            self._has_died = True
            self.refuse(reason)
        return self._state

    @property
    def at_start(self) -> tuple[str, ...]:
        """The names of the programs that are compiled before the model is ready, in order; empty while unknown."""
        return self._at_start

    @property
    def is_settled(self) -> bool:
        """Whether it is ready or has failed."""
        return self.state in ("ready", "failed")

    @property
    def _given_up(self) -> str:
        return "" if self._warm_up is None else self._warm_up.given_up

    @property
    def is_complete(self) -> bool:
        """Whether it has failed, or is ready and gets no more programs."""
        return self.is_settled and (not self.missing or bool(self._given_up))

    @property
    def compilations(self) -> int:
        """The number of this model's programs that were compiled and not read from the cache."""
        return sum(not report.cached for report in self.reports)

    @property
    def compiled_by_requests(self) -> int:
        """The number of programs that a request had to wait for: those of a picture size that was not warm."""
        if self._warm_up is None:
            return 0
        later = self.reports[self._made_before_ready :]
        return sum(not report.cached and report.name not in self._warm_up.names for report in later)

    @property
    def memory(self) -> HeldMemory | None:
        """What the ready model holds on each device; None before, and for one of another process."""
        return None if self._served is None else self._loader.held_memory(self._served)

    def get(self) -> T:
        """The ready model.

        Raises:
            ModelUnavailable: it is not ready yet, or it failed; the message says which, and why.
        """
        state, served = self.state, self._served
        if state == "failed":
            raise ModelUnavailable(f"{self.kind} is not available: {self.error}")
        if state != "ready" or served is None:
            raise ModelUnavailable(f"{self.kind} is warming up ({self.progress}); try again in a moment")
        return served

    @property
    def progress(self) -> str:
        """The present activity, for a status line."""
        match self.state:
            case "waiting":
                return "waiting for its turn"
            case "preparing":
                return self._activity
            case "loading":
                return f"loading and tracing {self.name}"
            case "compiling":
                made, count = len(self.reports), max(len(self._at_start), len(self.reports))
                doing = self._at_start[made] if made < count else "first run"
                left = "" if self.seconds_left is None else f", about {self.seconds_left:.0f} s left"
                return f"program {min(made + 1, count)} of {count}, {doing}; {self.seconds_so_far:.0f} s so far{left}"
            case "ready":
                if self.missing:
                    more = self._given_up or "getting faster"
                    return f"ready, {len(self.reports)} of {self.expected} programs; {more}"
                return f"ready; {len(self.reports)} programs in {self.seconds:.1f} s"
            case _:
                return f"failed: {self.error}"

    @property
    def _key(self) -> str:
        return f"{self.kind} {self.model}"

    @property
    def seconds_so_far(self) -> float:
        """Seconds since its warm-up began; 0 before that."""
        return time.monotonic() - self._started_at if self._started_at else 0.0

    @property
    def seconds_left(self) -> float | None:
        """The estimated seconds until it is ready, by its last start; None where that is unknown or was shorter."""
        last = self._last_seconds.get(bool(self.compilations) or not self.reports)
        return None if last is None or last < self.seconds_so_far else last - self.seconds_so_far

    @property
    def share_done(self) -> float | None:
        """How much of the warm-up is done, from 0 to 1, by time, else by programs; None while nothing is known."""
        if self._state == "preparing":
            return self._share
        if (left := self.seconds_left) is not None:
            return self.seconds_so_far / max(self.seconds_so_far + left, 1e-9)
        return len(self.reports) / len(self._at_start) if self._at_start else None

    def prepare(self, activity: str, share: float | None = None) -> None:
        """Say what happens before it is loaded, such as a download.

        Args:
            activity: for a status line.
            share: how much of it is done, from 0 to 1; None: unknown.
        """
        if self._state in ("waiting", "preparing"):
            self._activity, self._share, self._state = activity, share, "preparing"

    def warm_up(self, on_start: Callable[[], None] = lambda: None) -> None:
        """Load and compile under the tracing lock. Never raises: a failure becomes the state.

        Args:
            on_start: called when this thread has the lock.
        """
        with tracing.hold():
            on_start()
            self.load()

    def load(self) -> None:
        """Load the model in this thread, if it waits for that. Never raises: a failure becomes the state.

        Call it with the tracing lock, unless the loader neither loads nor traces in this process.
        """
        if self._state not in ("waiting", "preparing"):  # refused, removed, or warmed up meanwhile
            return
        self._state, self._started_at = "loading", time.monotonic()
        times = StartTimes(cache_folder())
        self._last_seconds = {compiled: times.last(self._key, compiled=compiled) for compiled in (True, False)}
        try:
            served = self._load()
            warm_up = self._loader.warm_up(served)
        # Also for bugs: the other models must still load. A panic in Rust is a BaseException.
        except BaseException as error:
            reason = in_words(error)
            _log.warning("%s model %s can't be used: %s", self.kind, self.model, reason)
            self.refuse(reason)
            return
        self.seconds = self.seconds_so_far
        times.keep(self._key, self.seconds, compiled=bool(self.compilations))
        if self._state == "failed":  # stopped meanwhile
            self._loader.stop(served)
            return
        self._made_before_ready = len(self.reports)
        self._served, self._warm_up = served, warm_up
        del served, warm_up  # a ready model may be removed at once, and its memory is free then
        self._state = "ready"
        _log.info("%s model %s: %s", self.kind, self.name, self.progress)

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of the programs that a ready model does not have yet, those that are needed most first."""
        return () if self._warm_up is None else tuple(self._warm_up.missing)

    def join(self, name: str) -> bool:
        """Use a missing program from the bundle; False if it is not there, or can't be used. Never raises."""
        return self._joined(name, lambda warm_up: warm_up.load(name))

    def compile(self, name: str) -> bool:
        """Compile a missing program in this process and use it; otherwise as `join`."""

        def compiled(warm_up: WarmUp) -> bool:
            with tracing.hold():
                return warm_up.compile(name)

        return self._joined(name, compiled)

    def _joined(self, name: str, attempt: Callable[[WarmUp], bool]) -> bool:
        if self._warm_up is None or self.state != "ready":
            return False
        try:
            joined = attempt(self._warm_up)
        except Exception as error:
            _log.warning("%s model %s goes on without %s: %s", self.kind, self.name, name, in_words(error))
            return False
        if joined:
            _log.info("%s model %s: %s (%s)", self.kind, self.name, self.progress, name)
        return joined

    def give_up(self, reason: str) -> None:
        """No more programs will join, and why."""
        if self._warm_up is not None:
            self._warm_up.given_up = reason

    def _load(self) -> T:
        """Load the model; a second time, without its bundle, if a program from the bundle fails."""
        try:
            return self._loader.load(self.model, self)
        except LoadedProgramFailed as error:
            _log.warning("%s model %s is compiled anew: %s", self.kind, self.model, error)
        self.reports.clear()  # here, where the error no longer holds the first model in memory
        return self._loader.load(self.model, self)

    def refuse(self, reason: str) -> None:
        """Set the state to "failed", with a reason that visitors may read: it names no folder of this machine."""
        for path in (resolve(self.model), self.model):
            reason = reason.replace(path, self.name)
        self.error, self._state = without_folders(reason), "failed"

    def expect(self, names: Sequence[str], count: int) -> None:
        self._at_start, self.expected = tuple(names), count

    def record(self, report: ProgramReport) -> None:
        """Record a program that became ready, in the warm-up or later (for example for a new picture size)."""
        self.reports.append(report)
        match self.state:
            case "ready":
                self.seconds += report.seconds
            case "loading":
                self._state = "compiling"

    def stop(self, reason: str = "the server is stopping") -> None:
        """Serve no more requests; may be called twice."""
        if self.state != "failed":
            self.refuse(reason)
        self._has_died = False
        if self._served is not None:
            self._loader.stop(self._served)

    @property
    def has_died(self) -> bool:
        """Whether it was ready, and stopped serving by itself."""
        return self.state == "failed" and self._has_died

    def restart(self) -> None:
        """Serve again after `has_died`. Never raises: a failure becomes the state, as another death."""
        served = self._served
        if served is None or not self.has_died:
            return
        self.restarts += 1
        try:
            self._loader.restart(served)
        except Exception as error:
            self.refuse(f"it can't be started again: {in_words(error)}")
        else:
            self._has_died, self.error, self._state = False, None, "ready"

    def drop(self) -> None:
        """Drop the reference to the stopped model, so that its memory can be freed."""
        self._served = self._warm_up = None


def in_words(error: BaseException) -> str:
    """An error as text: the message of this app's errors, the class and the message of others."""
    return str(error) if isinstance(error, HfjaxError) else f"{type(error).__name__}: {error}"


KINDS = {"chat": "chat", "sentiment": "sentiment", "images": "image"}  # as planners and flags name them


class Models(Generic[T]):
    """Several named models of one kind; the first one is the default of requests.

    Args:
        kind: "chat", "sentiment" or "images".
        loader: of all models of this kind.
    """

    def __init__(self, kind: str, loader: Loader[T]):
        self.kind = kind
        self._loader = loader
        self._changing = threading.Lock()
        self._backends: tuple[Backend[T], ...] = ()  # replaced as a whole, so that readers need no lock

    def __iter__(self) -> Iterator[Backend[T]]:
        return iter(self._backends)

    def __len__(self) -> int:
        return len(self._backends)

    @property
    def first(self) -> Backend[T]:
        return self._backends[0]

    @property
    def usable(self) -> Backend[T]:
        """The first one that is ready; the first one while none is."""
        return next((backend for backend in self._backends if backend.state == "ready"), self.first)

    def find(self, name: str | None = None) -> Backend[T]:
        """The model of this name; None: the first one.

        Raises:
            NotFound: an unknown name; the message lists the known ones.
        """
        if name is None:
            return self.first
        for backend in self._backends:
            if backend.name == name:
                return backend
        names = ", ".join(backend.name for backend in self._backends)
        raise NotFound(f"{self.kind} model {quoted(name)} is not loaded; there are: {names}")

    def add(self, name: str, model: str) -> Backend[T]:
        """Add a model, which waits for its warm-up.

        Raises:
            RequestRejected: the name is taken.
        """
        backend = Backend(kind=self.kind, name=name, model=model, loader=self._loader)
        with self._changing:
            if any(other.name == name for other in self._backends):
                raise RequestRejected(f"{self.kind} model {name!r} is there already; remove it first")
            self._backends = (*self._backends, backend)
        return backend

    def remove(self, name: str) -> Backend[T]:
        """Remove a model; later requests do not find it.

        Raises:
            RequestRejected: an unknown name, or the only model of its kind.
        """
        with self._changing:
            backend = self.find(name)
            if len(self._backends) == 1:
                raise RequestRejected(f"{self.kind} model {name!r} is the only one; add another before removing it")
            self._backends = tuple(other for other in self._backends if other is not backend)
        return backend
