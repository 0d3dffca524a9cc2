"""Requests can't make Gradio read the server's files, download others, or store what was sent."""

import json
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import ROOT, START_S, Studio, free_port, http


def file_at(path: str) -> dict[str, Any]:
    return {"path": path, "meta": {"_type": "gradio.FileData"}}


def run_event(studio: Studio, event: str, *data: Any) -> dict[str, Any]:
    """The last message of an event that a page's session starts."""
    url, session = f"{studio.url}/gradio_api", secrets.token_hex(8)
    known = http.get(f"{studio.url}/config").json()["dependencies"]
    [number] = [each["id"] for each in known if each["api_name"] == event]
    body = {"data": data, "fn_index": number, "session_hash": session}
    assert http.post(f"{url}/queue/join", json=body).status_code == 200
    with http.stream("GET", f"{url}/queue/data", params={"session_hash": session}) as stream:
        for line in stream.iter_lines():
            message = json.loads(line.removeprefix("data:")) if line.startswith("data:") else {"msg": ""}
            if message["msg"] == "process_completed":
                return message
    raise AssertionError("the stream ended before the event")


@pytest.mark.parametrize(
    "path", ["/proc/self/environ", "/etc/passwd", str(ROOT / "README.md"), "README.md", "/dev/zero"]
)
def test_only_uploaded_files_are_read(studio: Studio, path: str) -> None:
    """Gradio checks the path of a file only on pages that were launched, and the studio's page is mounted."""
    folder = Path(studio.visitors)
    before = {*folder.rglob("*")}
    for event, *data in (
        ("_run", None, "", file_at(path), True, "text", ""),
        ("_inspect", file_at(path), True),
        ("_reuse", file_at(path), ""),
        ("_varied", file_at(path), None, ""),
        ("zero_shot", "a text", file_at(path)),
    ):
        ended = run_event(studio, event, *data)
        assert not ended["success"], (event, ended)
        assert str(ROOT) not in str(ended["output"]).replace(path, ""), "no folder of the server"
    assert {each for each in {*folder.rglob("*")} - before if each.is_file()} == set()


@pytest.mark.parametrize("path", ["/etc/passwd", "/tmp/\0x", "x" * 100_000])
@pytest.mark.parametrize("event", ["_ask", "_why_label", "_picked"])
def test_the_details_of_an_event_name_no_other_files(studio: Studio, event: str, path: str) -> None:
    """Gradio refused them in its queue, with a traceback that had the path."""
    logged = len(studio.output.read_text())
    known = http.get(f"{studio.url}/config").json()["dependencies"]
    [dependency] = [each for each in known if each["api_name"] == event]
    details = {"do": "ask", "more": [file_at(path)]}
    body = {"data": [None] * len(dependency["inputs"]), "fn_index": dependency["id"], "session_hash": "details"}
    joined = http.post(f"{studio.url}/gradio_api/queue/join", json=body | {"event_data": details})
    assert (joined.status_code, "event_data: names a file" in joined.text) == (422, True), joined.text
    said = studio.output.read_text()[logged:]
    assert "Traceback" not in said
    assert path not in said


def test_nothing_is_downloaded(studio: Studio) -> None:
    ended = run_event(studio, "classify", file_at("http://example.invalid/large"))
    assert not ended["success"]
    assert "not fetched from elsewhere" in str(ended["output"])


def test_sent_values_are_not_stored(studio: Studio) -> None:
    """Gradio keeps the last values of a thousand sessions in memory, for links that show them."""

    def resident() -> int:
        status = Path(f"/proc/{studio.process.pid}/status").read_text()
        return int(dict(line.split(":", 1) for line in status.splitlines())["VmRSS"].split()[0]) >> 10

    def grown() -> int:
        before = resident()
        for _ in range(5):
            assert not run_event(studio, "classify", "x" * (8 << 20))["success"]
        return resident() - before

    # If they were stored, every five texts would add 40 MiB. What the allocators hold back grows only once.
    assert any(grown() < 20 for _ in range(6)), "memory grew by 20 MiB or more each of six times"
    assert http.get(f"{studio.url}/gradio_api/deep_link", params={"session_hash": "any"}).status_code == 404


def test_a_signal_in_a_finaliser_ends_the_server() -> None:
    """Python ignores a KeyboardInterrupt in a finaliser, and the server went on."""
    code = """
import os, signal, sys
from hfjax_app.backends import Backends
from hfjax_app.settings import Settings
from hfjax_app.server.server import launch

class Finalised:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        [None for _ in range(1000)]

class Interrupted(Backends):
    def start(self):
        Finalised()
        sys.exit(3)

launch(Interrupted(Settings()), Settings(port=int(sys.argv[1])))
"""
    ended = subprocess.run(
        [sys.executable, "-c", code, str(free_port())], cwd=ROOT, timeout=START_S, capture_output=True
    )
    assert ended.returncode == 0, ended.stderr.decode()
