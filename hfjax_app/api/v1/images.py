"""POST /v1/images/generations and /v1/images/edits."""

import asyncio
import base64
import re
import time
from collections.abc import Callable, Generator
from contextlib import aclosing
from typing import Annotated, Any, cast

from fastapi import Form, Request, UploadFile
from PIL import Image, ImageOps

from hfjax_app.api.http_errors import ClientLeft
from hfjax_app.api.v1.schemas import DrawingOptions, EditBody, ImageBody
from hfjax_app.client import client_of
from hfjax_app.errors import RequestRejected
from hfjax_app.images.interface import ImageModel
from hfjax_app.images.request import ImageRequest
from hfjax_app.images.steps import ImageStep, Waiting
from hfjax_app.limits import PICTURE_MAX_BYTES
from hfjax_app.pictures import read_picture
from hfjax_app.service.service import Service
from hfjax_app.validation import quoted

_SIZE = re.compile(r"(\d{1,4})x(\d{1,4})", re.ASCII)


class Images:
    """Answers both routes.

    Args:
        service: of pictures, with its admission.
    """

    def __init__(self, service: Service):
        self._images, self._admission = service.images, service.admission

    async def generate(self, body: ImageBody, request: Request) -> dict[str, Any]:
        """Draw pictures of a prompt."""
        return await self._drawn(body, request)

    async def edit(
        self, request: Request, body: Annotated[EditBody, Form(media_type="multipart/form-data")]
    ) -> dict[str, Any]:
        """Draw from a picture; with a mask only where it is transparent, as OpenAI has it."""
        image = await _content(body.image, "image")
        mask = None if body.mask is None else await _content(body.mask, "mask")

        def pictures() -> dict[str, Any]:
            painted = None if mask is None else _painted(read_picture(mask, "mask"))
            started = {"image": read_picture(image, "image"), "mask": painted}
            return started | {name: getattr(body, name) for name in ("strength", "softness", "region", "expand")}

        return await self._drawn(body, request, pictures)

    async def _drawn(
        self, body: ImageBody | EditBody, request: Request, pictures: Callable[[], dict[str, Any]] | None = None
    ) -> dict[str, Any]:
        """The answer.

        Args:
            body: of the request.
            request: its other parts.
            pictures: reads what the picture starts from, as options of an `ImageRequest`; None: it starts from nothing.
        """
        backend = self._images.find(body.model)
        client = client_of(request.scope)
        with self._admission.enter(client, "images", backend):
            generator = backend.get()
            width, height = _size(body.size, generator)
            options = {name: getattr(body, name) for name in DrawingOptions.model_fields}

            def begin() -> Generator[ImageStep | Waiting, None, None]:
                started = {} if pictures is None else pictures()
                asked = ImageRequest(**options, images=body.n, width=width, height=height, model=body.model, **started)
                return generator.generate(asked, previews=False, client=client.id)

            newest: ImageStep | Waiting | None = None
            steps = begin() if pictures is None else await self._images.read(begin)
            async with aclosing(self._images.run(backend, steps)) as running:
                async for step in running:
                    if await request.is_disconnected():
                        raise ClientLeft
                    newest = step
            last = cast(ImageStep, newest)  # of a request that has ended
            files = [await asyncio.to_thread(getattr, picture, "png") for picture in last.pictures]
        data = [
            {"b64_json": base64.b64encode(png).decode(), "revised_prompt": None, "seed": picture.seed}
            for png, picture in zip(files, last.pictures, strict=True)
        ]
        return {"created": int(time.time()), "data": data, "output_format": "png", "notice": last.notice}


async def _content(file: UploadFile, name: str) -> bytes:
    content = await file.read(PICTURE_MAX_BYTES + 1)
    if len(content) > PICTURE_MAX_BYTES:
        raise RequestRejected(f"{name} of more than {PICTURE_MAX_BYTES >> 20} MB: send a smaller one")
    return content


def _size(size: str | None, generator: ImageModel) -> tuple[int | None, int | None]:
    """Width and height of a size that is warm."""
    if size is None or size == "auto":
        return None, None
    found = _SIZE.fullmatch(size)
    if found is None or (int(found[1]), int(found[2])) not in generator.offered_sizes:
        warm = ", ".join(f"{width}x{height}" for width, height in generator.offered_sizes)
        raise RequestRejected(f"size = {quoted(size)}: one of {warm}; HFJAX_IMAGE_SIZES adds others")
    return int(found[1]), int(found[2])


def _painted(mask: Image.Image) -> Image.Image:
    """White where to draw: OpenAI's masks are transparent there, those without transparency are white already."""
    return ImageOps.invert(mask.getchannel("A")) if mask.has_transparency_data and "A" in mask.getbands() else mask
