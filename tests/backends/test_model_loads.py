"""Models that the operator loads and unloads while another one answers."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import pytest

from hfjax_app.backends import Backend, Backends
from hfjax_app.backends.model_loads import Load, fetch_model
from hfjax_app.chat import SamplingParams
from hfjax_app.errors import ModelUnavailable, NotFound, RequestRejected
from hfjax_app.runtime.process import collect_removed
from hfjax_app.runtime.program_report import ProgramReport
from hfjax_app.settings import load_settings
from tests.backends.checkpoints import save_chat
from tests.conftest import HANG_S, quickly_compiled

PROMPTS = [[5, 6, 7, 8], [9, 10, 11]]
GREEDY = SamplingParams(max_tokens=16, temperature=0.0)


@pytest.fixture(scope="module")
def backends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backends]:
    """A small chat model answers; the others do not exist."""
    folder = tmp_path_factory.mktemp("models")
    nothing = str(folder / "nothing")
    settings = load_settings(
        chat_model=str(save_chat(folder / "first")),
        sentiment_model=nothing,
        image_model=nothing,
        slots=2,
        context=64,
    )
    with quickly_compiled():
        started = Backends(settings).start()
        assert started.wait(HANG_S)
        yield started
        started.stop()


def wait(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def failed(load: Load) -> str:
    """Why a load failed; the app is as before."""
    assert load.wait(HANG_S), load.progress
    assert load.error is not None
    assert "\n" not in load.error
    return load.error


def held() -> int:
    collect_removed()
    return sum(array.nbytes for array in jax.live_arrays())


def test_answers_go_on_while_another_model_comes_and_goes(backends: Backends, tmp_path: Path) -> None:
    """Each answer has the tokens of a solo run, and the other's memory is free when it is gone."""
    engine = backends.chat.get().engine
    alone, before = engine.generate(PROMPTS, GREEDY), held()
    answers: list[list[list[int]]] = []
    ended = threading.Event()

    def ask() -> None:
        while not ended.wait(0.1):  # the load needs a core too
            answers.append(engine.generate(PROMPTS, GREEDY))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        load = backends.loads.begin("chat", str(save_chat(tmp_path / "second")))
        with pytest.raises(RequestRejected, match="'second' is being loaded: wait for it"):
            backends.loads.begin("chat", "chat-llama")
        with pytest.raises(RequestRejected, match="'second' is being loaded: cancel that"):
            backends.loads.unload("chat", "second")
        assert load.wait(HANG_S), load.progress
        assert (load.error, load.state) == (None, "ready")
        assert backends.chat_models.find("second").get().engine.generate(PROMPTS, GREEDY) == alone
        assert held() > before
        with pytest.raises(RequestRejected, match="'second' is there already"):
            backends.loads.begin("chat", str(tmp_path / "second"))
        backends.loads.unload("chat", "second")
    finally:
        ended.set()
        asking.join()
    assert answers.count(alone) == len(answers) > 0
    wait(lambda: held() <= before)  # the engine lets go of its last call's outputs after it has handed out the answers
    with pytest.raises(RequestRejected, match="'first' is the only chat model that is ready"):
        backends.loads.unload("chat", "first")
    with pytest.raises(NotFound, match="'second' is not loaded; there are: first"):
        backends.loads.unload("chat", "second")


def test_what_can_not_be_loaded_leaves_nothing_behind(backends: Backends, tmp_path: Path) -> None:
    pickled = tmp_path / "pickled"
    shutil.copytree(backends.chat.model, pickled, ignore=shutil.ignore_patterns("*.safetensors"))
    (pickled / "pytorch_model.bin").write_bytes(b"\x80")
    assert "none as safetensors: only safetensors files are loaded" in failed(
        backends.loads.begin("chat", str(pickled))
    )
    with pytest.raises(ModelUnavailable, match="model 'owner/name' is no folder here"):
        fetch_model("chat", "owner/name", backends.settings)  # what the process calls
    assert [backend.name for backend in backends.chat_models] == ["first"]
    with pytest.raises(RequestRejected, match="kind = 'speech': one of chat, images"):
        backends.loads.begin("speech", "chat-llama")


def test_a_load_is_cancelled_in_the_middle(backends: Backends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is checked, and while it is compiled here; a download of its own goes too."""
    with pytest.raises(RequestRejected, match="no model is being loaded"):
        backends.loads.cancel()
    before = held()
    folder = str(save_chat(tmp_path / "second"))
    load = backends.loads.begin("chat", folder)
    wait(lambda load=load: load.backend.state == "preparing")
    backends.loads.cancel()
    assert failed(load) == "cancelled by the operator"
    assert [backend.name for backend in backends.chat_models] == ["first"]

    compiling, go_on, record = threading.Event(), threading.Event(), Backend.record

    def held_up(backend: Backend, report: ProgramReport) -> None:
        record(backend, report)
        compiling.set()
        assert go_on.wait(HANG_S)

    monkeypatch.setattr(Backend, "record", held_up)
    load = backends.loads.begin("chat", folder)
    assert compiling.wait(HANG_S)
    assert load.state == "compiling"
    backends.loads.cancel()
    go_on.set()
    assert failed(load) == "cancelled by the operator"
    assert [backend.name for backend in backends.chat_models] == ["first"]
    monkeypatch.undo()
    del load
    wait(lambda: held() <= before)  # the engine lets go of its last call's outputs after it has handed out the answers


def test_a_load_ends_with_the_app(backends: Backends, tmp_path: Path) -> None:
    """The last test, because it stops the app."""
    load = backends.loads.begin("chat", str(save_chat(tmp_path / "second")))
    backends.stop()
    assert failed(load) == "cancelled by the operator"
    with pytest.raises(RequestRejected, match="the server is stopping"):
        backends.loads.begin("chat", "chat-llama")
