"""The images tab and its API never decode or encode pictures in the event loop's thread. Runs without a server."""

import asyncio
import base64
import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import numpy as np
import pytest
from PIL import Image

from hfjax_app import pictures
from hfjax_app.api.images import ImagesApi
from hfjax_app.backends.backend import Models
from hfjax_app.images import verification
from hfjax_app.images.generation_parameters import GenerationParameters, to_png
from hfjax_app.images.interface import ImageFacts, Latents, Recommended, Sizes
from hfjax_app.images.request import ImageRequest
from hfjax_app.images.steps import ImageStep, Picture
from hfjax_app.limits import IMAGE_MAX_LORAS
from hfjax_app.runtime.programs import Programs
from hfjax_app.runtime.warm_up import WarmUp
from hfjax_app.service.images import ImagesService
from hfjax_app.studio.files import MadeFiles
from hfjax_app.studio.images_tab import ImagesTab
from hfjax_app.studio.tab import Shared

REQUEST = ImageRequest("a", steps=1, guidance_scale=1.0, seed=2**63, width=8, height=8, scheduler="DDIM", loras="")
FACTS = ImageFacts(
    name=None,
    revision=None,
    versions={},
    recommended=Recommended(),
    sizes=Sizes(own=(8, 8), patch=8),
    latents=Latents(shape=(1, 4, 1, 1), height=2, width=3, scale=8),
    schedulers=("DDIM",),
    most={"steps": 100, "clip_skip": 0},
    takes_negative_prompt=True,
    takes_weights=False,
)
PARAMETERS = GenerationParameters.of(REQUEST, None, FACTS)


class Generator:
    """Draws grey pictures in two steps, and records the threads that work for it."""

    def __init__(self) -> None:
        self.facts, self.offered_sizes = FACTS, ((8, 8),)
        self.threads: set[str] = set()

    def seen(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            self.threads.add(threading.current_thread().name)
            return function(*args, **kwargs)

        return watched

    def generate(self, request: ImageRequest, **options: Any) -> Iterator[Any]:
        self.threads.add(threading.current_thread().name)
        return self._drawn(request.images)

    def _drawn(self, images: int) -> Iterator[Any]:
        grey = Image.new("RGB", (8, 8), "grey")
        for step in (1, 2):
            pixels = None if step == 1 else np.asarray(grey, np.float32) / 255
            pictures = tuple(Picture(seed=i, pixels=pixels, latents=None, parameters=PARAMETERS) for i in range(images))
            show = self.seen(lambda: [grey] * images)
            yield ImageStep(step=step, steps=2, seconds=1.0, pictures=pictures, show=show, notice=None)


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> Generator:
    made = Generator()
    for place, name in (
        (pictures, "read_picture"),
        (verification, "read_png"),
        (Picture, "png"),
        (Image.Image, "save"),
    ):
        function = getattr(place, name)
        if isinstance(function, property):
            monkeypatch.setattr(place, name, property(made.seen(function.fget)))
        else:
            monkeypatch.setattr(place, name, made.seen(function))
    return made


class Loader:
    def __init__(self, generator: Generator):
        self._generator = generator

    def load(self, model: str, watcher: Any) -> Generator:
        return self._generator

    def warm_up(self, served: Generator) -> WarmUp:
        return WarmUp(Programs(), [], staged=False)

    def failure(self, served: Generator) -> None:
        return None


def models(generator: Generator) -> Models[Any]:
    """The image models: one, which is ready."""
    made: Models[Any] = Models("images", Loader(generator))  # type: ignore[arg-type]
    made.add("images", "images").warm_up()
    return made


def png() -> bytes:
    return to_png(Image.new("RGB", (8, 8), "grey"), PARAMETERS)


async def everything(events: Any) -> list[Any]:
    return [event async for event in events]


def test_the_tab_keeps_pictures_out_of_the_event_loop(generator: Generator, tmp_path: Path) -> None:
    """Decoding a large upload took a second and encoding a PNG a quarter; all chats stopped meanwhile."""
    file = tmp_path / "picture.png"
    file.write_bytes(png())
    sent = {"path": str(file)}

    async def use() -> list[list[Any]]:
        with gr.Blocks():
            images = models(generator)
            closed = SimpleNamespace(is_open=False)  # no operator
            backends = SimpleNamespace(images=images.first, image_models=images)
            service = SimpleNamespace(backends=backends, images=ImagesService(images), models=closed)
            tab = ImagesTab(Shared(service=service, files=MadeFiles()))
        generator.threads.clear()
        source = {"background": sent, "layers": [sent]}
        loras = [0] * IMAGE_MAX_LORAS
        values = (source, 0.8, "#ffffff", 1.0, False, "", "", 2, 1.0, "DDIM", "8 x 8")
        return [
            await everything(tab._generate("a", "", [], *values, 1, 0, True, "", 0.3, 0, *loras)),
            await everything(tab._generate("a", "", [], *values, 2, 0, True, "", 0.3, 0, *loras)),
            await everything(tab._verify(sent, source)),
            await everything(tab._reuse(sent)),
        ]

    one, two, comparison, [settings] = asyncio.run(use())
    assert "MainThread" not in generator.threads
    assert len(generator.threads) >= 2
    pictures = [Image.open(io.BytesIO(Path(moments[-1][0]).read_bytes())) for moments in (one, two)]
    assert [picture.size for picture in pictures] == [(8, 8), (16, 8)]
    assert "hfjax" in pictures[0].info, "one picture is its own file"
    assert len(two[-1][8]) == 2
    assert "Identical" in comparison[-1][1]
    assert settings[1] == "a"
    assert settings[14] == str(REQUEST.seed), "as text: a browser would round the number"


def test_the_api_keeps_pictures_out_of_the_event_loop(generator: Generator) -> None:
    url = f"data:image/png;base64,{base64.b64encode(png()).decode()}"

    async def use() -> list[list[Any]]:
        generator.threads.clear()
        api = ImagesApi(ImagesService(models(generator)))
        drawn = await everything(api.generate("a", image=url, mask=url))
        return [drawn, await everything(api.replay(url))]

    drawn, replayed = asyncio.run(use())
    assert "MainThread" not in generator.threads
    assert [news.get("step") for news in drawn] == [1, None]
    content = base64.b64decode(drawn[-1]["images"][0].rpartition(",")[2])
    assert Image.open(io.BytesIO(content)).size == (8, 8)
    assert replayed[-1]["identical"]


def test_what_has_no_picture_does_not_wait_for_those_that_are_read(generator: Generator) -> None:
    """Another client's 24 files of 117 KB, of 40 million pixels each, held up a plain request for eight seconds."""

    async def use() -> list[Any]:
        service, release = ImagesService(models(generator)), threading.Event()
        api = ImagesApi(service)
        busy = asyncio.create_task(service.read(release.wait))
        await asyncio.sleep(0)
        try:
            return await asyncio.wait_for(everything(api.generate("a")), 60)
        finally:
            release.set()
            await busy

    assert len(asyncio.run(use())[-1]["images"]) == 1
