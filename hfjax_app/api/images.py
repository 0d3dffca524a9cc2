"""The API's images: pictures and replays, with pictures as data URLs. The images tab draws through the same object."""

import asyncio
import base64
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from typing import Any, TypeVar

import gradio as gr

from hfjax_app.api.gradio_errors import streamed
from hfjax_app.api.iterate_in_thread import iterate_in_thread
from hfjax_app.backends import Backend, Backends
from hfjax_app.limits import IMAGES_AT_ONCE

T = TypeVar("T")

# Of every event that draws.
EVENT = {"concurrency_id": "images", "concurrency_limit": IMAGES_AT_ONCE}


class ImagesApi:
    """Draws pictures.

    Args:
        backend: the images backend.
    """

    def __init__(self, backend: Backend):
        self._backend = backend
        self._threads = ThreadPoolExecutor(IMAGES_AT_ONCE, "images")  # those who wait in line must not hold up the chat
        self._reader = ThreadPoolExecutor(1, "image-reader")  # one upload at a time: it may decode to 160 MB

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
    ) -> dict[str, Any]:
        """Pictures as {"images": PNG data URLs, "seeds": the seeds used, "notice": such as a prompt that was cut, or
        null}; before that streams {"waiting": why} and, for each step, {"step", "steps", "seconds_left"}. `image` (a
        picture to start from) and `mask` (white where to draw) are data URLs. `steps` and
        `guidance_scale` null: as the model card recommends."""
        generator = self._backend.get()

        def begin() -> Iterator[Any]:
            return generator.generate(
                prompt,
                negative_prompt=negative_prompt,
                steps=generator.recommended.steps if steps is None else steps,
                guidance_scale=generator.recommended.guidance_scale if guidance_scale is None else guidance_scale,
                seed=seed,
                images=images,
                width=width,
                height=height,
                scheduler=scheduler,
                strength=strength,
                image=_picture(image, "image"),
                mask=_picture(mask, "mask"),
            )

        async with aclosing(self._told(begin, _drawn)) as told:
            async for news in told:
                yield news

    @streamed
    async def replay(self, png: str, image: str | None = None, mask: str | None = None) -> dict[str, Any]:
        """Draws a PNG file (a data URL) again from the generation parameters inside: {"identical", "summary"}; before
        that streams what /generate streams. `image` is needed where the picture was drawn from one, `mask` only where
        the file, an older one, does not hold it."""
        from hfjax_app.images import replay
        from hfjax_app.images.uploads import from_data_url

        generator = self._backend.get()

        def begin() -> Iterator[Any]:
            given = {"image": _picture(image, "image"), "mask": _picture(mask, "mask")}
            return replay(generator, from_data_url(png, "picture"), **given)

        async with aclosing(self._told(begin, _compared)) as told:
            async for news in told:
                yield news

    async def _told(
        self, begin: Callable[[], Iterator[Any]], news: Callable[[Iterator[Any]], Iterator[dict[str, Any]]]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """`news` of the moments of the generator that `begin` makes of what was sent.

        Pictures are decoded and encoded in threads: it takes too long for the one that serves everybody.
        """
        moments = await self.read(begin)
        async with aclosing(self.run(news(moments))) as told:
            async for each in told:
                yield each

    async def read(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function that decodes pictures, in the thread that does so for all requests, one by one."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, function, *arguments)

    async def run(self, steps: Iterator[T]) -> AsyncGenerator[T, None]:
        """Draw in a thread, step by step.

        Raises:
            ModelUnavailable: the server ends.
        """
        async with aclosing(iterate_in_thread(steps, self._threads)) as running:
            async for step in running:
                self._backend.get()
                yield step


def register(backends: Backends) -> ImagesApi:
    api = ImagesApi(backends.images)
    gr.api(api.generate, api_name="generate", **EVENT)
    gr.api(api.replay, api_name="replay", **EVENT)
    return api


def _picture(url: object, name: str) -> Any:
    from hfjax_app.images.uploads import from_data_url, read_picture

    return None if url is None else read_picture(from_data_url(url, name), name)


def _drawn(moments: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """What /generate streams."""
    with closing(moments):
        for moment in moments:
            if not getattr(moment, "is_last", False):
                yield _progress(moment)
                continue
            yield {
                "images": [_data_url(picture.png) for picture in moment.pictures],
                "seeds": [picture.seed for picture in moment.pictures],
                "notice": moment.notice,
            }


def _compared(moments: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """What /replay streams."""
    with closing(moments):
        for moment in moments:
            if summary := getattr(moment, "summary", None):
                yield {"identical": moment.is_identical, "summary": summary}
            elif not getattr(moment, "is_last", False):
                yield _progress(moment)


def _progress(moment: Any) -> dict[str, Any]:
    if reason := getattr(moment, "reason", None):
        return {"waiting": reason}
    return {"step": moment.step, "steps": moment.steps, "seconds_left": round(moment.seconds_left, 2)}


def _data_url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
