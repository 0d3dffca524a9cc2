"""Several visitors draw at once, over HTTP: one that cancels or leaves ends its own picture at once, and no other.

The server runs in this process, so that each visitor's denoising steps can be counted and held.
"""

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
from hfjax_app.images import ImageGenerator, ImageRequest, ImageStep
from hfjax_app.images.denoiser import Denoiser
from hfjax_app.limits import IMAGES_SERVED_TOGETHER
from hfjax_app.server.app import build_app
from hfjax_app.settings import Settings
from tests.images.pipelines import stable_diffusion

from .conftest import LIMIT_S, http, served

STEPS = 60
LEAVES, STAYS = 1, 2  # two visitors, known by their seeds
SLOW_S = 0.2


@dataclass
class Steps:
    """Counts the denoising steps of each visitor.

    Attributes:
        held_at: this step of the visitor LEAVES, and each later one, waits for `has_happened`.
        slow: whether the later ones also take SLOW_S.
        begun: the number of steps, by seed.
        is_held: set when the first of these steps waits.
        has_happened: set by the test when the visitor has left.
    """

    held_at: int = 5
    slow: bool = False
    begun: Counter[int] = field(default_factory=Counter)
    is_held: threading.Event = field(default_factory=threading.Event)
    has_happened: threading.Event = field(default_factory=threading.Event)

    def begin(self, seed: int) -> None:
        self.begun[seed] += 1
        if seed == LEAVES and self.begun[seed] >= self.held_at:
            self.is_held.set()
            assert self.has_happened.wait(LIMIT_S)
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
    for backend in made.all:  # also those that fail, or pages would poll without end
        backend.warm_up()
    assert made.images.state == "ready", made.images.error
    return made


@pytest.fixture(scope="module")
def url(backends: Backends) -> Iterator[str]:
    async def serve() -> uvicorn.Config:
        return uvicorn.Config(build_app(backends).app, log_level="warning")

    with served(serve) as found:
        yield found


class Visitor:
    """A session of a page or a client: one stream of messages for all its events."""

    _numbers = itertools.count()

    def __init__(self, url: str):
        self.url, self.session = f"{url}/gradio_api", f"visitor-{next(self._numbers)}"
        dependencies = http.get(f"{url}/config").json()["dependencies"]
        [self.event] = [each["id"] for each in dependencies if each["api_name"] == "generate"]
        self.event_id = "none"  # until something is drawn

    def draw(self, seed: int) -> None:
        data = ["red dot", "", STEPS, 2.0, seed, 1, None, None, None, None, None, 0.8]
        body = {"data": data, "fn_index": self.event, "session_hash": self.session}
        joined = http.post(f"{self.url}/queue/join", json=body)
        assert joined.status_code == 200, joined.text
        self.event_id = joined.json()["event_id"]

    def messages(self) -> Iterator[dict[str, Any]]:
        """Messages until the picture is complete. Closing the iterator closes the connection, as a closed tab does."""
        with http.stream(
            "GET", f"{self.url}/queue/data", params={"session_hash": self.session}, timeout=LIMIT_S
        ) as stream:
            for line in stream.iter_lines():
                if line.startswith("data:"):
                    message = json.loads(line.removeprefix("data:"))
                    yield message
                    if message["msg"] == "process_completed":
                        return

    def result(self) -> dict[str, Any]:
        """The output in the last message."""
        *_, last = self.messages()
        return last["output"]

    def cancel(self) -> None:
        body = {"session_hash": self.session, "fn_index": self.event, "event_id": self.event_id}
        assert http.post(f"{self.url}/cancel", json=body).status_code == 200


def picture(output: dict[str, Any]) -> bytes:
    """The pixels of a finished picture."""
    [found] = output["data"]
    [image] = found["images"]
    return Image.open(io.BytesIO(base64.b64decode(image.rpartition(",")[2]))).tobytes()


def alone(generator: ImageGenerator, seed: int) -> bytes:
    *_, step = generator.generate(ImageRequest("red dot", steps=STEPS, guidance_scale=2.0, seed=seed))
    return step.image.tobytes()


def wait_for_places(generator: ImageGenerator) -> None:
    """Check that all places are free again: as many requests as there are places start together."""
    served = [generator.generate(ImageRequest("red dot", steps=2, seed=100 + i)) for i in range(IMAGES_SERVED_TOGETHER)]
    for moments in served:
        assert any(isinstance(moment, ImageStep) for moment in moments)
        moments.close()


@pytest.fixture
def generator(backends: Backends) -> ImageGenerator:
    return backends.images.get()


def test_cancelling_ends_no_other_visitors_picture(url: str, generator: ImageGenerator, steps: Steps) -> None:
    """Cancelled in the middle of a step, which is the last one. The other visitor's picture is unchanged by that."""
    leaves, stays = Visitor(url), Visitor(url)
    with ThreadPoolExecutor(2) as threads:
        leaves.draw(LEAVES)
        cancelled = threads.submit(leaves.result)
        stays.draw(STAYS)
        finished = threads.submit(stays.result)
        assert steps.is_held.wait(LIMIT_S)
        leaves.cancel()
        steps.has_happened.set()
        got = picture(finished.result(LIMIT_S))
        assert not cancelled.result(LIMIT_S).get("data"), "no picture came of it"
    wait_for_places(generator)
    assert steps.begun[LEAVES] == steps.held_at
    assert steps.begun[STAYS] == STEPS
    assert got == alone(generator, STAYS)


def test_closing_a_page_ends_no_other_visitors_picture(url: str, generator: ImageGenerator, steps: Steps) -> None:
    """The connection breaks in the middle of a step. The server notices a moment later, far from the last step."""
    steps.slow = True
    leaves, stays = Visitor(url), Visitor(url)
    with ThreadPoolExecutor(1) as threads:
        leaves.draw(LEAVES)
        with closing(leaves.messages()) as messages:
            assert any(message["msg"] == "process_generating" for message in messages)
            stays.draw(STAYS)
            finished = threads.submit(stays.result)
            assert steps.is_held.wait(LIMIT_S)
        steps.has_happened.set()
        got = picture(finished.result(LIMIT_S))
    wait_for_places(generator)
    assert steps.held_at <= steps.begun[LEAVES] < STEPS
    assert steps.begun[STAYS] == STEPS
    assert got == alone(generator, STAYS)


def test_no_visitor_can_cancel_anothers_picture(url: str, generator: ImageGenerator, steps: Steps) -> None:
    """Not even in the middle of it, and with the number of its event."""
    draws, meddles = Visitor(url), Visitor(url)
    with ThreadPoolExecutor(1) as threads:
        draws.draw(LEAVES)
        finished = threads.submit(draws.result)
        assert steps.is_held.wait(LIMIT_S)
        meddles.cancel()
        steps.has_happened.set()
        got = picture(finished.result(LIMIT_S))
    assert steps.begun[LEAVES] == STEPS
    assert got == alone(generator, LEAVES)


@pytest.mark.filterwarnings("ignore:'future.no_silent_downcasting'")  # Gradio's, when it notes that an event failed
def test_a_stopping_server_ends_streams_with_an_error(
    backends: Backends, url: str, steps: Steps, visit: Callable[..., Page]
) -> None:
    """The last test, because it stops the backends. A page whose stream is cut off waits until it is reloaded."""
    page = visit(SimpleNamespace(url=url), tab="Images")
    expect(page.locator("#generate")).to_be_enabled()
    page.locator("#prompt textarea").fill("red dot")
    page.locator("#seed input").fill(str(LEAVES))
    expect(page.locator("#random-seed input")).not_to_be_checked()
    page.locator("#generate").click()
    assert steps.is_held.wait(LIMIT_S)
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
