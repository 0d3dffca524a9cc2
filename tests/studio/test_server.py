"""How the server starts and ends."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import ROOT, start


def test_a_taken_port_is_one_line_and_status_1() -> None:
    """Said before any model is loaded."""
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
    """Also in the middle of warming up: status 0 and no stack trace."""
    studio = start(tmp_path / "log")
    studio.process.send_signal(number)
    assert studio.process.wait(30) == 0, studio.output.read_text()
    assert "Traceback" not in studio.output.read_text()
