"""The image endpoints of Gradio's API: generate pictures and replay them. Pictures are data URLs."""

import base64
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, closing
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import gradio as gr
from PIL import Image

from hfjax_app.api.gradio_errors import Concurrency, streamed
from hfjax_app.backends import Backend
from hfjax_app.client import sender
from hfjax_app.errors import RequestRejected
from hfjax_app.images.interface import ImageModel
from hfjax_app.images.request import REGIONS, ImageRequest, sides_of
from hfjax_app.images.steps import ImageStep, Waiting
from hfjax_app.images.verification import Comparison, replay
from hfjax_app.limits import IMAGES_AT_ONCE
from hfjax_app.pictures import from_data_url, read_picture
from hfjax_app.service.images import ImagesService
from hfjax_app.service.service import Service

T = TypeVar("T")
Progress: TypeAlias = ImageStep | Waiting
StreamItem: TypeAlias = dict[str, Any]  # one item of a streamed answer, as JSON

# For every event that draws.
EVENT: Concurrency = {"concurrency_id": "images", "concurrency_limit": IMAGES_AT_ONCE}


class ImagesApi:
    """Answers both endpoints.

    Args:
        service: of pictures.
    """

    def __init__(self, service: ImagesService):
        self._service = service

    @streamed
    async def generate(
        self,
        prompt: str,
        negative_prompt: str = "",
        steps: int | None = None,
        guidance_scale: float | None = None,
        seed: int | None = None,
        images: int = 1,
        width: int | None = None,
        height: int | None = None,
        scheduler: str | None = None,
        image: str | None = None,
        mask: str | None = None,
        strength: float = 0.8,
        model: str | None = None,
        background: str = "#ffffff",
        variation_of: int | None = None,
        variation: float = 0.3,
        softness: float = 1.0,
        region: str = "whole",
        expand: str = "",
        loras: str | None = None,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Pictures as {"images": PNG data URLs, "seeds": the seeds used, "notice": such as a prompt that was cut, or
        null}; before that streams {"waiting": why} and, for each step, {"step", "steps", "seconds_left"}. `image` (a
        picture to start from, on `background` where it is transparent) and `mask` (white where to draw) are data URLs.
        What is black in the mask keeps its pixels; `softness` (0 to 8 latents) is the width of the seam, `region`
        "marked" draws only what is marked, and so larger, `expand` "left,right,up,down" are pixels that are drawn
        around the picture. `variation_of` is a seed that the pictures stay near, `variation` (0 to 1) how far from it
        they are. `loras` "style:0.8,other:0.5" are of those that the server offers, "" means none. `steps` and
        `guidance_scale` null: as the model card recommends. `model`: one of /v1/models; null: the first."""
        options = {name: value for name, value in locals().items() if name != "self"}
        backend = self._service.find(model)
        generator = backend.get()

        def begin() -> Generator[Progress, None, None]:
            pictures = {name: _picture(options[name], name) for name in ("image", "mask")}
            return generator.generate(ImageRequest(**options | pictures), previews=False, client=sender().id)

        reads = image is not None or mask is not None
        async with aclosing(self._messages(backend, begin, _drawn, reads=reads)) as messages:
            async for message in messages:
                yield message

    def check_generate(self, *values: Any) -> None:
        """Raise RequestRejected for values that /generate refuses, before the request is queued. Reads no picture.

        Args:
            values: the arguments of `generate`, in its order.
        """
        options = dict(zip(_GENERATE, values, strict=True))
        sides_of(options["expand"])
        if has_picture := options["image"] is not None:  # what needs a picture is checked when it is read
            options |= {"expand": "", "region": "whole"} if options["region"] in REGIONS else {"expand": ""}
        for name in ("image", "mask"):
            if (url := options.pop(name)) is not None and not isinstance(url, str):
                raise RequestRejected(f"{name}: must be a data URL, not {type(url).__name__}")
        generator = self._service.find(options["model"]).get()
        request = ImageRequest(**options)
        if has_picture and generator.facts.needs_picture:
            request = replace(request, image=generator.facts.trial().image)
        generator.generate(request, client=sender().id).close()

    @streamed
    async def replay(
        self, png: str, image: str | None = None, mask: str | None = None, model: str | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Draws a PNG file (a data URL) again from the generation parameters inside: {"identical", "summary"}; before
        that streams what /generate streams. `image` is needed where the picture was drawn from one, `mask` only where
        the file, an older one, does not hold it. `model`: as for /generate."""
        backend = self._service.find(model)
        generator = backend.get()

        def begin() -> "Generator[Progress | Comparison, None, None]":
            source, painted = _picture(image, "image"), _picture(mask, "mask")
            return replay(generator, from_data_url(png, "picture"), image=source, mask=painted, client=sender().id)

        async with aclosing(self._messages(backend, begin, _compared)) as messages:
            async for message in messages:
                yield message

    async def _messages(
        self,
        backend: Backend[ImageModel],
        begin: Callable[[], Generator[T, None, None]],
        as_messages: Callable[[Generator[T, None, None]], Generator[StreamItem, None, None]],
        *,
        reads: bool = True,
    ) -> AsyncGenerator[StreamItem, None]:
        """The messages of a request.

        Pictures are decoded and encoded in threads, because that takes too long for the event loop, which serves all
        visitors.

        Args:
            backend: the model that draws.
            begin: checks the request and returns its generator of steps.
            as_messages: turns the steps into messages.
            reads: whether `begin` decodes pictures.
        """
        steps = await self._service.read(begin) if reads else begin()
        async with aclosing(self._service.run(backend, as_messages(steps))) as messages:
            async for message in messages:
                yield message


_GENERATE = [*inspect.signature(ImagesApi.generate).parameters][1:]


def register(service: Service) -> None:
    api = ImagesApi(service.images)
    gr.api(api.generate, api_name="generate", **EVENT)
    gr.api(api.replay, api_name="replay", **EVENT)


def _picture(url: object, name: str) -> Image.Image | None:
    return None if url is None else read_picture(from_data_url(url, name), name)


def _drawn(steps: Generator[Progress, None, None]) -> Generator[StreamItem, None, None]:
    """What /generate streams."""
    with closing(steps):
        for step in steps:
            if isinstance(step, Waiting) or not step.is_last:
                yield _progress(step)
                continue
            yield {
                "images": [_data_url(picture.png) for picture in step.pictures],
                "seeds": [picture.seed for picture in step.pictures],
                "notice": step.notice,
            }


def _compared(steps: "Generator[Progress | Comparison, None, None]") -> Generator[StreamItem, None, None]:
    """What /replay streams."""
    with closing(steps):
        for step in steps:
            if isinstance(step, Comparison):
                yield {"identical": step.is_identical, "summary": step.summary}
            elif isinstance(step, Waiting) or not step.is_last:
                yield _progress(step)


def _progress(step: Progress) -> StreamItem:
    if isinstance(step, Waiting):
        return {"waiting": step.reason}
    return {"step": step.step, "steps": step.steps, "seconds_left": round(step.seconds_left, 2)}


def _data_url(png: bytes | None) -> str:
    assert png is not None  # the last step's pictures have one
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
