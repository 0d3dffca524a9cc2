"""Several named models of a kind: each with its own state, ledger and counts, added and removed while others serve."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import pytest

from hfjax_app.backends import Backend, Backends
from hfjax_app.errors import ModelUnavailable, RequestRejected
from hfjax_app.runtime.memory import free_memory
from hfjax_app.runtime.process import collect_removed
from hfjax_app.settings import load_settings
from tests.backends.checkpoints import save_classifier
from tests.conftest import quickly_compiled

TEXT = "w1 w2 w3"


@pytest.fixture(scope="module")
def backends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backends]:
    """A small classifier serves; chat and images have no model. Each test removes what it adds."""
    folder = tmp_path_factory.mktemp("models")
    nothing = str(folder / "nothing")
    settings = load_settings(
        chat_model=nothing, image_model=nothing, sentiment_model=str(save_classifier(folder / "first"))
    )
    with quickly_compiled():
        started = Backends(settings).start()
        assert started.wait(timeout=300)
        yield started
        started.stop()


def added(backends: Backends, kind: str, model: str, name: str | None = None) -> Backend:
    """The model, ready or failed, when the thread that warmed it up has ended."""
    backend = backends.add(kind, model, name=name)
    assert backends.wait_for_all_models(timeout=240), backend.progress
    assert backend.is_settled
    return backend


def test_a_model_is_added_and_removed_while_another_serves(
    backends: Backends, tmp_path: Path, compilations: Callable
) -> None:
    first, before = backends.sentiment, backends.sentiment.get().classify([TEXT])
    ledger = [report.name for report in first.reports]
    second = added(backends, "sentiment", str(save_classifier(tmp_path / "second")))
    assert (second.name, second.state, second.error) == ("second", "ready", None)
    assert [backend.name for backend in backends.sentiment_models] == ["first", "second"]
    assert backends.sentiment_models.find() is first
    assert backends.sentiment_models.find("second") is second
    assert [report.name for report in second.reports] == ledger, "a ledger of its own"
    assert [report.name for report in first.reports] == ledger, "which the other's does not see"
    assert second.compilations + sum(report.cached for report in second.reports) == len(ledger)
    with compilations() as seen:
        assert second.get().classify([TEXT])[0].keys() == before[0].keys()
        backends.remove("sentiment", "second")
        assert backends.sentiment.get().classify([TEXT]) == before
    assert seen == []
    with pytest.raises(ModelUnavailable, match="sentiment is not available: this model was removed"):
        second.get()
    with pytest.raises(RequestRejected, match="'second' is not loaded; there are: first"):
        backends.sentiment_models.find("second")


def test_the_memory_of_a_removed_model_is_free_again(backends: Backends, tmp_path: Path) -> None:
    """Warm objects are frozen, so Python's collector skips them; a removed model must still be freed."""

    def held() -> int:
        return sum(array.nbytes for array in jax.live_arrays())

    collect_removed()  # objects of earlier tests
    before = held()
    second = added(backends, "sentiment", str(save_classifier(tmp_path / "second")))
    second.get().classify([TEXT])
    assert held() > before
    backends.remove("sentiment", "second")
    del second
    assert held() == before


def test_a_model_that_fails_does_not_affect_the_others(backends: Backends, tmp_path: Path) -> None:
    missing = added(backends, "sentiment", str(tmp_path / "missing"), name="another")
    assert missing.state == "failed"
    assert str(tmp_path) not in str(missing.error), "visitors see it"
    assert backends.sentiment.state == "ready"
    backends.remove("sentiment", "another")


def test_a_model_without_room_is_refused_by_name(
    backends: Backends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 64 KiB free. It is not loaded, and the others serve."""
    monkeypatch.setattr("hfjax_app.backends.registry.free_memory", lambda: 64 << 10)
    large = added(backends, "chat", "chat-llama")
    assert (large.state, large.reports) == ("failed", [])
    assert re.fullmatch(
        r"chat model 'chat-llama' does not fit beside the others: it needs \d+ MiB, and 0 MiB are free \(margin 6%\): "
        r"unload another model, or choose a smaller one, HFJAX_QUANTIZE=int8, .*",
        str(large.error),
    )
    assert backends.sentiment.get().classify([TEXT])
    backends.remove("chat", "chat-llama")
    monkeypatch.undo()
    assert free_memory() > 64 << 20


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda b: b.add("sentiment", "sentiment", name="first"), "'first' is there already"),
        (lambda b: b.add("speech", "whisper"), "kind = 'speech': one of chat, sentiment, images"),
        (lambda b: b.remove("sentiment", "first"), "'first' is the only one"),
        (lambda b: b.remove("sentiment", "third"), "'third' is not loaded; there are: first"),
    ],
)
def test_wrong_additions_and_removals_are_refused(backends: Backends, change: Callable, says: str) -> None:
    with pytest.raises(RequestRejected, match=says):
        change(backends)
    assert [backend.name for backend in backends.sentiment_models] == ["first"]
