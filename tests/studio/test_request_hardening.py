"""What requests can't make Gradio do: read the server's files, fetch others, keep what was sent, fill every line."""

import asyncio
import json
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr
import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from hfjax_app.limits import EVENTS_WAITING
from hfjax_app.studio.request_hardening import harden

from .conftest import ROOT, Studio, free_port, http


def file_at(path: str) -> dict[str, Any]:
    return {"path": path, "meta": {"_type": "gradio.FileData"}}


def asked(studio: Studio, event: str, *data: Any) -> dict[str, Any]:
    """The end of an event that a page's session joins."""
    url, session = f"{studio.url}/gradio_api", secrets.token_hex(8)
    known = http.get(f"{studio.url}/config", timeout=30).json()["dependencies"]
    [number] = [each["id"] for each in known if each["api_name"] == event]
    body = {"data": data, "fn_index": number, "session_hash": session}
    assert http.post(f"{url}/queue/join", json=body, timeout=60).status_code == 200
    with http.stream("GET", f"{url}/queue/data", params={"session_hash": session}, timeout=60) as stream:
        for line in stream.iter_lines():
            message = json.loads(line.removeprefix("data:")) if line.startswith("data:") else {"msg": ""}
            if message["msg"] == "process_completed":
                return message
    raise AssertionError("the stream ended before the event")


@pytest.mark.parametrize(
    "path", ["/proc/self/environ", "/etc/passwd", str(ROOT / "README.md"), "README.md", "/dev/zero"]
)
def test_only_uploaded_files_are_read(studio: Studio, path: str) -> None:
    """Gradio looks where a file lies only on pages that were launched, and the studio's is mounted."""
    kept = Path(studio.visitors)
    before = {*kept.rglob("*")}
    for event, *data in (
        ("_run", "", file_at(path), True, "text"),
        ("_reuse", file_at(path)),
        ("zero_shot", "a text", file_at(path)),
    ):
        ended = asked(studio, event, *data)
        assert not ended["success"], (event, ended)
        assert str(ROOT) not in str(ended["output"]).replace(path, ""), "no folder of the server"
    assert {each for each in {*kept.rglob("*")} - before if each.is_file()} == set()


def test_nothing_is_fetched(studio: Studio) -> None:
    ended = asked(studio, "classify", file_at("http://example.invalid/large"))
    assert not ended["success"]
    assert "not fetched from elsewhere" in str(ended["output"])


def test_what_was_sent_is_not_kept(studio: Studio) -> None:
    """Gradio kept each session's last values, for links that show them; of a thousand sessions, in memory."""

    def resident() -> int:
        status = Path(f"/proc/{studio.process.pid}/status").read_text()
        return int(dict(line.split(":", 1) for line in status.splitlines())["VmRSS"].split()[0]) >> 10

    def grown() -> int:
        before = resident()
        for _ in range(5):
            assert not asked(studio, "classify", "x" * (8 << 20))["success"]
        return resident() - before

    # Kept, every five texts would be 40 MiB more. What the allocators keep is theirs once only.
    assert any(grown() < 20 for _ in range(6)), "MiB, six times"
    assert http.get(f"{studio.url}/gradio_api/deep_link", params={"session_hash": "any"}).status_code == 404


@pytest.fixture
def held() -> Iterator[tuple[str, threading.Event]]:
    """A page with two hardened endpoints, the first of which waits for the event."""
    go, server = threading.Event(), []

    async def slow() -> str:
        while not go.is_set():
            await asyncio.sleep(0.01)
        return "slow"

    async def quick() -> str:
        return "quick"

    port = free_port()

    async def serve() -> None:
        with gr.Blocks() as page:
            for function in (slow, quick):
                gr.api(function, api_name=function.__name__, concurrency_id=function.__name__)
        page.queue(api_open=False)
        harden(page)
        app = gr.mount_gradio_app(FastAPI(), page, path="/", ssr_mode=False)
        server.append(uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning")))
        await server[0].serve()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    deadline = time.monotonic() + 30
    while not (server and server[0].started):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}/gradio_api/call", go
    go.set()
    server[0].should_exit = True
    thread.join(30)


def test_a_full_line_is_its_own(held: tuple[str, threading.Event]) -> None:
    """Who floods one endpoint and fetches no answer closed all tabs: Gradio counts everybody's events together."""
    url, _ = held
    with httpx.Client(timeout=30) as client:
        answers = [client.post(f"{url}/slow", json={"data": []}) for _ in range(EVENTS_WAITING + 3)]
        assert [answer.status_code for answer in answers[:EVENTS_WAITING]] == [200] * EVENTS_WAITING
        assert answers[-1].status_code == 503
        assert "Too many wait already" in answers[-1].text
        event = client.post(f"{url}/quick", json={"data": []}).json()["event_id"]
        assert '["quick"]' in client.get(f"{url}/quick/{event}").text


def test_a_signal_in_a_finaliser_ends_the_server() -> None:
    """As KeyboardInterrupt it was lost there, and anywhere else where Python can raise nothing: the server went on."""
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
    ended = subprocess.run([sys.executable, "-c", code, str(free_port())], cwd=ROOT, timeout=60, capture_output=True)
    assert ended.returncode == 0, ended.stderr.decode()
