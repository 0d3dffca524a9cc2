"""How the server starts and ends."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import ROOT, Studio, http, start


def test_a_taken_port_is_one_line_and_status_1() -> None:
    """The error comes before any model is loaded."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        ended = subprocess.run(
            [sys.executable, "app.py"],
            cwd=ROOT,
            env={**os.environ, "HFJAX_PORT": str(port)},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert ended.returncode == 1
    assert ended.stderr == f"error: port {port} is taken; choose another with --port or HFJAX_PORT\n"


def test_an_idle_server_rests(studio: Studio) -> None:
    """Its event loop wakes up some hundred times a second and not thousands, which would slow down the models."""

    def woken() -> int:
        status = Path(f"/proc/{studio.process.pid}/status").read_text()
        return int(dict(line.split(":", 1) for line in status.splitlines())["voluntary_ctxt_switches"])

    studio.wait_until(lambda health: health["status"] == "ready", 120, "ready")
    before, started = woken(), time.monotonic()
    time.sleep(2)
    assert (woken() - before) / (time.monotonic() - started) < 400


def test_an_unknown_setting_is_one_line_and_status_2() -> None:
    ended = subprocess.run(
        [sys.executable, "app.py"],
        cwd=ROOT,
        env={**os.environ, "HFJAX_SLOT": "4"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 2
    assert "HFJAX_SLOT" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_signals_end_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """During the warm-up and with an open page: status 0 and no stack trace."""
    studio = start(tmp_path / "log")
    with http.stream("GET", f"{studio.url}/gradio_api/heartbeat/page", timeout=30) as heartbeat:
        lines = heartbeat.iter_lines()  # a variable, because the connection ends when the iterator is collected
        assert next(lines) == "data: ALIVE"
        studio.process.send_signal(number)
        assert studio.process.wait(30) == 0, studio.output.read_text()
    assert "Traceback" not in studio.output.read_text()
