"""Several visitors draw at once, over HTTP: who cancels or leaves ends the own picture, at once, and nobody else's.

The server runs in this process, so that each visitor's denoising steps can be counted and held.
"""

import asyncio
import base64
import io
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from PIL import Image
from playwright.sync_api import Page, expect

from hfjax_app.backends import Backends
from hfjax_app.images import ImageGenerator, ImageStep
from hfjax_app.images.denoiser import Denoiser
from hfjax_app.limits import IMAGES_SERVED_TOGETHER
from hfjax_app.server.app import studio_app
from hfjax_app.settings import Settings
from tests.images.pipelines import stable_diffusion

from .conftest import free_port, http

STEPS = 60
LEAVES, STAYS = 1, 2  # two visitors, known by their seeds
SLOW_S = 0.2


@dataclass
class Steps:
    """Denoising steps of each visitor. That of the one who leaves which `held_at` says waits until it has happened."""

    held_at: int = 5
    slow: bool = False  # from then on
    begun: Counter[int] = field(default_factory=Counter)
    is_held: threading.Event = field(default_factory=threading.Event)
    has_happened: threading.Event = field(default_factory=threading.Event)

    def begin(self, seed: int) -> None:
        self.begun[seed] += 1
        if seed == LEAVES and self.begun[seed] >= self.held_at:
            self.is_held.set()
            assert self.has_happened.wait(30)
            if self.slow and self.begun[seed] > self.held_at:
                time.sleep(SLOW_S)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    watched, step = Steps(), Denoiser.__call__

    def begin(denoiser: Denoiser, state: Any, arrays: Any, fixed: Any, numbers: Any) -> Any:
        watched.begin(int(fixed["key"][1]))
        return step(denoiser, state, arrays, fixed, numbers)

    monkeypatch.setattr(Denoiser, "__call__", begin)
    return watched


@pytest.fixture(scope="module")
def backends(quick_compiler: None, tmp_path_factory: pytest.TempPathFactory) -> Backends:
    folder: Path = tmp_path_factory.mktemp("images")
    stable_diffusion().save_pretrained(folder)
    missing = str(folder / "missing")
    made = Backends(Settings(image_model=str(folder), chat_model=missing, sentiment_model=missing))
    for backend in made.all:  # also those that fail, or pages would go on asking how far they are
        backend.warm_up()
    assert made.images.state == "ready", made.images.error
    return made


@pytest.fixture(scope="module")
def url(backends: Backends) -> Iterator[str]:
    port, servers, is_there = free_port(), [], threading.Event()

    async def serve() -> None:  # Gradio makes a loop of its own where it finds none, and never closes it
        servers.append(uvicorn.Server(uvicorn.Config(studio_app(backends), port=port, log_level="warning")))
        is_there.set()
        await servers[0].serve()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert is_there.wait(60)
    deadline = time.monotonic() + 30
    while not servers[0].started:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    servers[0].should_exit = True
    thread.join(30)
    assert not thread.is_alive()


class Visitor:
    """A session as a page or a client has one: one stream of messages for all that it asks for."""

    _numbers = itertools.count()

    def __init__(self, url: str):
        self.url, self.session = f"{url}/gradio_api", f"visitor-{next(self._numbers)}"
        dependencies = http.get(f"{url}/config", timeout=30).json()["dependencies"]
        [self.event] = [each["id"] for each in dependencies if each["api_name"] == "generate"]
        self.event_id = "none"  # until something is drawn

    def draw(self, seed: int) -> None:
        data = ["red dot", "", STEPS, 2.0, seed, 1, None, None, None, None, None, 0.8]
        body = {"data": data, "fn_index": self.event, "session_hash": self.session}
        joined = http.post(f"{self.url}/queue/join", json=body, timeout=30)
        assert joined.status_code == 200, joined.text
        self.event_id = joined.json()["event_id"]

    def messages(self) -> Iterator[dict[str, Any]]:
        """Until the picture is complete; closing it before that closes the connection, as a closed tab does."""
        with http.stream("GET", f"{self.url}/queue/data", params={"session_hash": self.session}, timeout=60) as stream:
            for line in stream.iter_lines():
                if line.startswith("data:"):
                    message = json.loads(line.removeprefix("data:"))
                    yield message
                    if message["msg"] == "process_completed":
                        return

    def result(self) -> dict[str, Any]:
        """What the last message holds."""
        *_, last = self.messages()
        return last["output"]

    def cancel(self) -> None:
        body = {"session_hash": self.session, "fn_index": self.event, "event_id": self.event_id}
        assert http.post(f"{self.url}/cancel", json=body, timeout=30).status_code == 200


def picture(output: dict[str, Any]) -> bytes:
    """The pixels of a finished picture."""
    [found] = output["data"]
    [image] = found["images"]
    return Image.open(io.BytesIO(base64.b64decode(image.rpartition(",")[2]))).tobytes()


def alone(generator: ImageGenerator, seed: int) -> bytes:
    *_, step = generator.generate("red dot", steps=STEPS, guidance_scale=2.0, seed=seed)
    return step.image.tobytes()


def wait_for_places(generator: ImageGenerator) -> None:
    """As many are served together as ever: whoever ended has left, or this waits until it has."""
    served = [generator.generate("red dot", steps=2, seed=100 + i) for i in range(IMAGES_SERVED_TOGETHER)]
    for moments in served:
        assert any(isinstance(moment, ImageStep) for moment in moments)
        moments.close()


@pytest.fixture
def generator(backends: Backends) -> ImageGenerator:
    return backends.images.get()


def test_who_cancels_ends_no_one_elses_picture(url: str, generator: ImageGenerator, steps: Steps) -> None:
    """Cancelled in the middle of a step: that one is the last, and the other visitor's picture is what it is alone."""
    leaves, stays = Visitor(url), Visitor(url)
    with ThreadPoolExecutor(2) as threads:
        leaves.draw(LEAVES)
        cancelled = threads.submit(leaves.result)
        stays.draw(STAYS)
        finished = threads.submit(stays.result)
        assert steps.is_held.wait(30)
        leaves.cancel()
        steps.has_happened.set()
        got = picture(finished.result(60))
        assert not cancelled.result(60).get("data"), "no picture came of it"
    wait_for_places(generator)
    assert steps.begun[LEAVES] == steps.held_at
    assert steps.begun[STAYS] == STEPS
    assert got == alone(generator, STAYS)


def test_who_closes_the_page_ends_no_one_elses_picture(url: str, generator: ImageGenerator, steps: Steps) -> None:
    """The connection breaks in the middle of a step. The server notices a moment later, far from the last step."""
    steps.slow = True
    leaves, stays = Visitor(url), Visitor(url)
    with ThreadPoolExecutor(1) as threads:
        leaves.draw(LEAVES)
        with closing(leaves.messages()) as messages:
            assert any(message["msg"] == "process_generating" for message in messages)
            stays.draw(STAYS)
            finished = threads.submit(stays.result)
            assert steps.is_held.wait(30)
        steps.has_happened.set()
        got = picture(finished.result(60))
    wait_for_places(generator)
    assert steps.held_at <= steps.begun[LEAVES] < STEPS
    assert steps.begun[STAYS] == STEPS
    assert got == alone(generator, STAYS)


def test_nobody_cancels_another_visitors_picture(url: str, generator: ImageGenerator, steps: Steps) -> None:
    """Not even in the middle of it, with the number of its event, and with an event of the own that is none."""
    draws, meddles = Visitor(url), Visitor(url)
    with ThreadPoolExecutor(1) as threads:
        draws.draw(LEAVES)
        finished = threads.submit(draws.result)
        assert steps.is_held.wait(30)
        meddles.cancel()
        steps.has_happened.set()
        got = picture(finished.result(60))
    assert steps.begun[LEAVES] == STEPS
    assert got == alone(generator, LEAVES)


@pytest.mark.filterwarnings("ignore:'future.no_silent_downcasting'")  # Gradio's, when it notes that an event failed
def test_when_the_server_ends_streams_are_told(
    backends: Backends, url: str, steps: Steps, visit: Callable[..., Page]
) -> None:
    """Last, because the backends end. A page whose stream is only cut off waits until it is reloaded."""
    page = visit(SimpleNamespace(url=url), tab="Images")
    expect(page.locator("#generate")).to_be_enabled(timeout=30_000)
    page.locator("#prompt textarea").fill("red dot")
    page.locator("#seed input").fill(str(LEAVES))
    expect(page.locator("#random-seed input")).not_to_be_checked()
    page.locator("#generate").click()
    assert steps.is_held.wait(30)
    visitor = Visitor(url)
    visitor.draw(STAYS)
    backends.stop()
    steps.has_happened.set()
    ended = visitor.result()
    assert "the server is stopping" in ended["error"]
    assert steps.begun[LEAVES] <= steps.held_at + 1
    assert steps.begun[STAYS] < STEPS
    expect(page.locator(".toast-body")).to_contain_text("the server is stopping")
    expect(page.locator("#generate")).to_be_enabled()
    expect(page.locator("#cancel")).to_be_disabled()
