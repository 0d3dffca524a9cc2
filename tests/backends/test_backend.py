"""One model's state: what happens when a program from its bundle fails in the warm-up."""

import logging

import pytest

from hfjax_app.backends import Backend
from hfjax_app.backends.backend import Watcher
from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime.program_report import ProgramReport
from hfjax_app.runtime.programs import LoadedProgramFailed, Programs
from hfjax_app.runtime.warm_up import WarmUp


class Loader:
    """Loads a word. Its first loads report a program of a bundle, and fail when that one is run."""

    def __init__(self, failures: int):
        self.failures, self.loads = failures, 0

    def load(self, model: str, watcher: Watcher) -> str:
        self.loads += 1
        broken, self.failures = self.failures > 0, self.failures - 1
        watcher.record(ProgramReport(name="step", seconds=1.0, source="bundle" if broken else "compiled"))
        if broken:
            raise LoadedProgramFailed("a program from the bundle can't run")
        return model

    def warm_up(self, served: str) -> WarmUp:
        return WarmUp(Programs(), [], staged=False)

    def failure(self, served: str) -> str | None:
        return None

    def stop(self, served: str) -> None:
        """Nothing runs."""


def warmed(failures: int) -> Backend[str]:
    backend = Backend(kind="chat", name="word", model="word", loader=Loader(failures))
    backend.warm_up()
    return backend


def test_a_model_whose_bundle_fails_is_compiled_anew(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        backend = warmed(failures=1)
    assert (backend.state, backend.get()) == ("ready", "word")
    assert [report.cached for report in backend.reports] == [False], "the ledger has what serves"
    assert backend.compilations == 1
    assert caplog.messages == ["chat model word is compiled anew: a program from the bundle can't run"]


def test_a_model_is_loaded_once_however_often_it_is_warmed_up() -> None:
    """One that was added while the app prepared itself was loaded by the first warm-up and by its own."""
    loader = Loader(failures=0)
    backend = Backend(kind="chat", name="word", model="word", loader=loader)
    backend.warm_up()
    backend.warm_up()
    assert (backend.state, loader.loads) == ("ready", 1)


def test_programs_that_requests_wait_for_are_counted() -> None:
    """Not those that join later by themselves, nor those from a cache: a visitor waited for none of them."""
    backend = warmed(failures=0)
    assert (backend.compilations, backend.compiled_by_requests) == (1, 0)
    assert backend._warm_up is not None
    backend._warm_up.names = frozenset({"later"})
    backend.record(ProgramReport(name="later", seconds=1.0, source="compiled"))
    backend.record(ProgramReport(name="size", seconds=1.0, source="bundle"))
    assert backend.compiled_by_requests == 0
    backend.record(ProgramReport(name="size", seconds=1.0, source="compiled"))
    assert backend.compiled_by_requests == 1


def test_a_model_that_fails_twice_is_refused() -> None:
    backend = warmed(failures=2)
    assert backend.state == "failed"
    with pytest.raises(ModelUnavailable, match="chat is not available: a program from the bundle can't run"):
        backend.get()
