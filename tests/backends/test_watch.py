"""Models that die: logged, started again once a minute, and given up after three deaths in ten minutes."""

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hfjax_app.backends import Backends, registry
from hfjax_app.backends.registry import Watch
from hfjax_app.chat import ChatEngine, SamplingParams
from hfjax_app.errors import EngineStopped
from hfjax_app.settings import Settings
from tests.backends.checkpoints import save_chat


class Fault(Exception):
    pass


@pytest.fixture(scope="module")
def backends(quick_compiler: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backends]:
    folder = tmp_path_factory.mktemp("models")
    missing, tiny = str(folder / "none"), str(save_chat(folder / "tiny"))
    options = {"slots": 2, "context": 64}
    backends = Backends(Settings(chat_model=tiny, sentiment_model=missing, image_model=missing, **options))
    for backend in backends.all:
        backend.warm_up()
    assert backends.chat.state == "ready", backends.chat.error
    yield backends
    backends.stop()


@pytest.fixture
def given_up(backends: Backends, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    monkeypatch.setattr(registry, "LOOK_S", 0.02)
    reasons: list[str] = []
    watching = Watch(backends, reasons.append).start()
    yield reasons
    watching.stop()


def answer(engine: ChatEngine) -> list[int]:
    return list(engine.stream([5, 6, 7], SamplingParams(max_tokens=4, temperature=0.0)))


def die(backends: Backends, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device fault in every call until the engine stops; all who wait are told."""
    engine = backends.chat.get().engine

    def fail(*arguments: Any) -> Any:
        raise Fault("the device is gone")

    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "prefill", fail)
        for _ in range(3):
            with pytest.raises(EngineStopped):
                answer(engine)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_engine_that_died_serves_again(
    backends: Backends,
    given_up: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    compilations: Callable[[], Any],
) -> None:
    before = answer(backends.chat.get().engine)
    with caplog.at_level(logging.WARNING), compilations() as compiled:
        die(backends, monkeypatch)
        wait_until(lambda: backends.chat.restarts == 1 and backends.chat.state == "ready")
        monkeypatch.setattr(registry, "RESTART_S", 3600.0)
        assert answer(backends.chat.get().engine) == before
    assert compiled == []
    assert "chat model tiny died: the chat engine is not running: it failed 3 times in a row" in caplog.text
    assert "chat model tiny was started again" in caplog.text
    assert given_up == []

    die(backends, monkeypatch)  # at once again: not started again so soon
    wait_until(lambda: caplog.text.count("chat model tiny died: ") == 2)
    assert (backends.chat.state, backends.chat.restarts) == ("failed", 1)
    monkeypatch.setattr(registry, "RESTART_S", 0.0)
    wait_until(lambda: backends.chat.state == "ready")
    die(backends, monkeypatch)
    wait_until(lambda: given_up != [])
    assert given_up[0].startswith("chat died 3 times in 10 minutes: the chat engine is not running")
    assert backends.chat.state == "failed"


def test_a_model_that_was_stopped_stays_stopped(backends: Backends, given_up: list[str], tmp_path: Path) -> None:
    backends.chat.stop()
    time.sleep(0.1)
    assert not backends.chat.has_died
    assert given_up == []
