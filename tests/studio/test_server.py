"""How the server starts and ends."""

import random
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hfjax_app import console
from hfjax_app.__main__ import main
from hfjax_app.server import server

from .conftest import LIMIT_S, START_S, Studio, http, start


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs `hfjax serve` in this process, whose log stays as it is: exit status and stderr. No model may be loaded."""
    monkeypatch.setattr(server, "set_up_log", lambda form: None)
    monkeypatch.setattr(console, "quiet", lambda: None)

    def run(*arguments: str) -> tuple[int, str]:
        return main(["serve", *arguments]), capsys.readouterr().err

    return run


def test_a_taken_port_is_one_line_and_status_1(served: Callable[..., tuple[int, str]]) -> None:
    """The error comes before any model is loaded."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        said = f"error: port {port} is taken; choose another with --port or HFJAX_PORT\n"
        assert served("--port", str(port)) == (1, said)


def test_an_unknown_setting_is_one_line_and_status_2(
    served: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HFJAX_SLOT", "4")
    status, said = served()
    assert status == 2
    assert "HFJAX_SLOT" in said
    assert len(said.splitlines()) == 1


def test_a_space_s_login_starts_only_in_a_space(served: Callable[..., tuple[int, str]]) -> None:
    """Elsewhere Gradio mocks it, and every visitor would be the user of this machine."""
    status, said = served("--auth", "oauth")
    assert status == 2
    assert said.startswith("error: auth = 'oauth': it needs a Space with hf_oauth: true; not set: SPACE_ID")
    assert len(said.splitlines()) == 1


def slow_call(studio: Studio, tokens: int) -> str:
    """The path of a call that makes so many tokens."""
    data = [[{"role": "user", "content": "Tell me a story."}], "", tokens, 1.0]
    joined = http.post(f"{studio.url}/gradio_api/call/chat", json={"data": data})
    assert joined.status_code == 200, joined.text
    return f"{studio.url}/gradio_api/call/chat/{joined.json()['event_id']}"


@pytest.fixture
def ending_studio(tmp_path: Path, slow_model: Path, request: pytest.FixtureRequest) -> Iterator[Studio]:
    """A server with a slow chat model alone, and so many seconds of grace."""
    studio = start(
        tmp_path / "log",
        HFJAX_CHAT_MODEL=str(slow_model),
        HFJAX_SENTIMENT_MODEL=str(tmp_path / "none"),
        HFJAX_IMAGE_MODEL=str(tmp_path / "none"),
        HFJAX_SLOTS="2",
        HFJAX_CONTEXT="512",  # as `slow_studio`, whose programs are in the cache
        HFJAX_GRACE=str(request.param),
        JAX_DISABLE_MOST_OPTIMIZATIONS="1",
    )
    studio.wait_until(lambda health: health["backends"]["chat"]["state"] == "ready", START_S, "ready")
    yield studio
    studio.process.kill()
    studio.process.wait(LIMIT_S)


@pytest.mark.parametrize("ending_studio", [START_S], indirect=True)
def test_a_server_that_is_told_to_stop_finishes_what_runs(ending_studio: Studio) -> None:
    """Every answer was cut after 0.08 s. What comes in meanwhile is refused; heartbeats of pages end last."""
    studio = ending_studio
    assert http.get(f"{studio.url}/ready/chat").status_code == 200
    with (
        http.stream("GET", slow_call(studio, 60)) as stream,
        http.stream("GET", f"{studio.url}/gradio_api/heartbeat/page") as heartbeat,
    ):
        lines, beats = stream.iter_lines(), heartbeat.iter_lines()
        next(line for line in lines if '"tokens": 1' in line)
        next(beats)
        studio.process.send_signal(signal.SIGTERM)
        studio.wait_until(lambda _: http.get(f"{studio.url}/ready/chat").status_code == 503, LIMIT_S, "draining")
        assert http.get(f"{studio.url}/live").status_code == 200
        refused = http.post(f"{studio.url}/gradio_api/call/classify", json={"data": ["x"]})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        last = [line for line in lines if line][-2:]
        assert last[0] == "event: complete"
        assert '"finish_reason": "length"' in last[1]
    assert studio.process.wait(LIMIT_S) == 0
    assert "Traceback" not in studio.output.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("ending_studio", [1], indirect=True)
def test_what_runs_after_the_grace_is_told(ending_studio: Studio) -> None:
    studio = ending_studio
    with http.stream("GET", slow_call(studio, 480)) as stream:
        lines = stream.iter_lines()
        next(line for line in lines if '"tokens": 1' in line)
        studio.process.send_signal(signal.SIGTERM)
        assert [line for line in lines if line][-2] == "event: error", "told"
    assert studio.process.wait(LIMIT_S) == 0
    assert "Traceback" not in studio.output.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("ending_studio", [60], indirect=True)
def test_a_second_signal_ends_at_once(ending_studio: Studio) -> None:
    studio = ending_studio
    with http.stream("GET", slow_call(studio, 480)) as stream:
        lines = stream.iter_lines()
        next(line for line in lines if '"tokens": 1' in line)
        studio.process.send_signal(signal.SIGTERM)
        studio.wait_until(lambda _: http.get(f"{studio.url}/ready/chat").status_code == 503, LIMIT_S, "draining")
        studio.process.send_signal(signal.SIGTERM)
        assert studio.process.wait(LIMIT_S) == 128 + signal.SIGTERM
    assert "Traceback" not in studio.output.read_text()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)], ids=lambda number: number.name
)
def test_signals_end_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """During the warm-up and with an open page: status 0 and no stack trace. A test above sends SIGTERM later."""
    studio = start(tmp_path / "log")
    with http.stream("GET", f"{studio.url}/gradio_api/heartbeat/page") as heartbeat:
        lines = heartbeat.iter_lines()  # a variable, because the connection ends when the iterator is collected
        assert next(lines) == "data: ALIVE"
        studio.process.send_signal(number)
        assert studio.process.wait(LIMIT_S) == 0, studio.output.read_text()
    assert "Traceback" not in studio.output.read_text()


def killed_and_started(tmp_path: Path, model: Path, after_s: float | None = None) -> None:
    """Kills a start with an empty cache, then starts with what is left of the cache.

    Args:
        after_s: the seconds until the kill; None: when the cache has its first file.
    """
    missing, cache = str(tmp_path / "none"), tmp_path / "cache"
    environment = {
        "HFJAX_CACHE_DIR": str(cache),
        "HFJAX_CHAT_MODEL": str(model),
        "HFJAX_SENTIMENT_MODEL": missing,
        "HFJAX_IMAGE_MODEL": missing,
        "HFJAX_SLOTS": "1",
        "HFJAX_CONTEXT": "64",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }
    studio = start(tmp_path / "log-killed", **environment)
    if after_s is None:
        studio.wait_until(lambda _: any(path.is_file() for path in cache.rglob("*")), START_S, "writes its cache")
    else:
        time.sleep(after_s)
    studio.process.kill()
    studio.process.wait(LIMIT_S)
    studio = start(tmp_path / "log", **environment)
    try:
        ended = ("ready", "failed")
        states = studio.wait_until(lambda health: health["backends"]["chat"]["state"] in ended, START_S, "warm")
        assert states["backends"]["chat"]["state"] == "ready", states
        assert http.get(f"{studio.url}/ready/chat").status_code == 200
    finally:
        studio.process.kill()
        studio.process.wait(LIMIT_S)


def test_kill_9_while_starting_leaves_nothing_broken(tmp_path: Path, second_model: Path) -> None:
    killed_and_started(tmp_path, second_model)


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_many_kills(tmp_path: Path, second_model: Path) -> None:
    """Twenty kills at random moments, each followed by a good start."""
    rng = random.Random(1)
    for number in range(20):
        (tmp_path / str(number)).mkdir()
        killed_and_started(tmp_path / str(number), second_model, rng.random() * 10)
