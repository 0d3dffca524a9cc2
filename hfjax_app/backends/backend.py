"""One model of the app: its state, its compiled programs, and, once ready, the object that serves it.

Does not know how models of a kind are loaded: `loaders.py` does.
"""

import logging
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from hfjax_app.embedded import resolve
from hfjax_app.errors import HfjaxError, ModelUnavailable, without_folders
from hfjax_app.runtime import tracing_lock
from hfjax_app.runtime.programs import LoadedProgramFailed, ProgramReport

_log = logging.getLogger(__name__)

T = TypeVar("T")

OnReport = Callable[[ProgramReport], None]


class Loader(Protocol[T]):
    """How models of one kind are loaded, watched and stopped."""

    def load(self, model: str, on_report: OnReport) -> T:
        """The model with its programs compiled and run once.

        Args:
            model: an embedded model's name, a folder, or a hub id.
            on_report: called with each program's report.
        """

    def failure(self, served: T) -> str | None:
        """Why a model that was ready stopped serving; None while it serves."""

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
        seconds: the time to get ready, plus that of every program compiled later.
        error: why it can't be used; None while it can.
    """

    def __init__(self, *, kind: str, name: str, model: str, loader: Loader[T]):
        self.kind, self.name, self.model = kind, name, model
        self.reports: list[ProgramReport] = []
        self.seconds = 0.0
        self.error: str | None = None
        self._loader = loader
        self._served: T | None = None
        self._state = "waiting"

    @property
    def state(self) -> str:
        """ "waiting" (for the models before it), "loading", "compiling", "ready" or "failed"."""
        if self._state == "ready" and self._served is not None and (reason := self._loader.failure(self._served)):
            self.refuse(reason)
        return self._state

    @property
    def is_settled(self) -> bool:
        """Whether it is ready or has failed."""
        return self.state in ("ready", "failed")

    @property
    def compilations(self) -> int:
        """The number of this model's programs that were compiled and not read from the cache."""
        return sum(not report.cached for report in self.reports)

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
            case "loading":
                return f"loading and tracing {self.name}"
            case "compiling":
                last = self.reports[-1]
                source = "from the cache" if last.cached else "compiled"
                count = "1 program" if len(self.reports) == 1 else f"{len(self.reports)} programs"
                return f"{count} ready; {last.name} {source} in {last.seconds:.1f} s"
            case "ready":
                return f"ready; {len(self.reports)} programs in {self.seconds:.1f} s"
            case _:
                return f"failed: {self.error}"

    def warm_up(self, on_start: Callable[[], None] = lambda: None) -> None:
        """Load and compile under the tracing lock. Never raises: a failure becomes the state.

        Args:
            on_start: called when this thread has the lock.
        """
        with tracing_lock.hold():
            on_start()
            if self._state != "waiting":  # refused or removed meanwhile, or warmed up by another thread
                return
            self._state, started = "loading", time.monotonic()
            try:
                served = self._load()
            # Also for bugs: the other models must still load. A panic in Rust is a BaseException.
            except BaseException as error:
                reason = in_words(error)
                _log.warning("%s model %s can't be used: %s", self.kind, self.model, reason)
                self.refuse(reason)
                return
            if self._state == "failed":  # stopped meanwhile
                self._loader.stop(served)
                return
            self.seconds = time.monotonic() - started
            self._served, self._state = served, "ready"

    def _load(self) -> T:
        """Load the model; a second time, without its bundle, if a program from the bundle fails."""
        try:
            return self._loader.load(self.model, self._reported)
        except LoadedProgramFailed as error:
            _log.warning("%s model %s is compiled anew: %s", self.kind, self.model, error)
        self.reports.clear()  # here, where the error no longer holds the first model in memory
        return self._loader.load(self.model, self._reported)

    def refuse(self, reason: str) -> None:
        """Set the state to "failed", with a reason that visitors may read: it names no folder of this machine."""
        for path in (resolve(self.model), self.model):
            reason = reason.replace(path, self.name)
        self.error, self._state = without_folders(reason), "failed"

    def _reported(self, report: ProgramReport) -> None:
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
        if self._served is not None:
            self._loader.stop(self._served)

    def drop(self) -> None:
        """Drop the reference to the stopped model, so that its memory can be freed."""
        self._served = None


def in_words(error: BaseException) -> str:
    """An error as text: the message of this app's errors, the class and the message of others."""
    return str(error) if isinstance(error, HfjaxError) else f"{type(error).__name__}: {error}"
