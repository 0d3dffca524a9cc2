"""POST /v1/images/generations and /v1/images/edits."""

import asyncio
import base64
import inspect
import re
import time
from collections.abc import Generator
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, cast

from fastapi import File, Form, Request, UploadFile

from hfjax_app.api.images import ImagesApi
from hfjax_app.api.v1.errors import UNKNOWN, ClientLeft
from hfjax_app.api.v1.schemas import MOST_CHOICES, ImageRequest
from hfjax_app.backends import Backends
from hfjax_app.client import client_of
from hfjax_app.errors import RequestRejected
from hfjax_app.limits import PICTURE_MAX_BYTES
from hfjax_app.service.admission import Admission
from hfjax_app.validation import quoted

if TYPE_CHECKING:
    from PIL import Image

    from hfjax_app.images.interface import ImageModel
    from hfjax_app.images.steps import ImageStep, Waiting

_SIZE = re.compile(r"(\d{1,4})x(\d{1,4})", re.ASCII)


class Images:
    """Answers both routes.

    Args:
        backends: the image models among them.
        admission: of all requests.
    """

    def __init__(self, backends: Backends, admission: Admission):
        self._backends, self._admission = backends, admission

    async def generate(self, body: ImageRequest, request: Request) -> dict[str, Any]:
        """Draw pictures of a prompt."""
        return await self._drawn(body, request)

    async def edit(
        self,
        request: Request,
        image: Annotated[UploadFile, File()],
        prompt: Annotated[str, Form()],
        mask: Annotated[UploadFile | None, File()] = None,
        model: Annotated[str | None, Form()] = None,
        n: Annotated[int, Form(ge=1, le=MOST_CHOICES)] = 1,
        size: Annotated[str | None, Form()] = None,
        response_format: Annotated[str, Form()] = "b64_json",
        seed: Annotated[int | None, Form()] = None,
        negative_prompt: Annotated[str, Form()] = "",
        steps: Annotated[int | None, Form()] = None,
        guidance_scale: Annotated[float | None, Form()] = None,
        scheduler: Annotated[str | None, Form()] = None,
        user: Annotated[str | None, Form()] = None,
        strength: Annotated[float, Form()] = 0.8,
    ) -> dict[str, Any]:
        """Draw from a picture; with a mask only where it is transparent, as OpenAI has it."""
        if response_format != "b64_json":
            raise RequestRejected(f"response_format = {quoted(response_format)}: only b64_json")
        if unknown := sorted((await request.form()).keys() - _EDIT_FIELDS):
            raise RequestRejected(f"{quoted(unknown[0])[1:-1]}: {UNKNOWN}")
        picture, painted = await _content(image, "image"), None if mask is None else await _content(mask, "mask")
        body = ImageRequest(
            prompt=prompt,
            model=model,
            n=n,
            size=size,
            seed=seed,
            negative_prompt=negative_prompt,
            steps=steps,
            guidance_scale=guidance_scale,
            scheduler=scheduler,
        )
        return await self._drawn(body, request, picture, painted, strength)

    async def _drawn(
        self,
        body: ImageRequest,
        request: Request,
        image: bytes | None = None,
        mask: bytes | None = None,
        strength: float = 0.8,
    ) -> dict[str, Any]:
        from hfjax_app.pictures.uploads import read_picture

        backend = self._backends.image_models.find(body.model)
        api = ImagesApi(self._backends.image_models)
        client = client_of(request.scope)
        with self._admission.enter(client, "images", backend):
            generator = backend.get()
            width, height = _size(body.size, generator)
            advice = generator.recommended

            def begin() -> "Generator[ImageStep | Waiting, None, None]":
                return generator.generate(
                    body.prompt,
                    negative_prompt=body.negative_prompt,
                    steps=advice.steps if body.steps is None else body.steps,
                    guidance_scale=advice.guidance_scale if body.guidance_scale is None else body.guidance_scale,
                    seed=body.seed,
                    images=body.n,
                    width=width,
                    height=height,
                    scheduler=body.scheduler,
                    image=None if image is None else read_picture(image, "image"),
                    mask=None if mask is None else _painted(read_picture(mask, "mask")),
                    strength=strength,
                    previews=False,
                    client=client.id,
                )

            newest: ImageStep | Waiting | None = None
            steps = begin() if image is None else await api.read(begin)
            async with aclosing(api.run(backend, steps)) as running:
                async for step in running:
                    if await request.is_disconnected():
                        raise ClientLeft
                    newest = step
            last = cast("ImageStep", newest)  # of a request that has ended
            files = [await asyncio.to_thread(getattr, picture, "png") for picture in last.pictures]
        data = [
            {"b64_json": base64.b64encode(png).decode(), "revised_prompt": None, "seed": picture.seed}
            for png, picture in zip(files, last.pictures, strict=True)
        ]
        return {"created": int(time.time()), "data": data, "output_format": "png", "notice": last.notice}


_EDIT_FIELDS = inspect.signature(Images.edit).parameters.keys()


async def _content(file: UploadFile, name: str) -> bytes:
    content = await file.read(PICTURE_MAX_BYTES + 1)
    if len(content) > PICTURE_MAX_BYTES:
        raise RequestRejected(f"{name} of more than {PICTURE_MAX_BYTES >> 20} MB: send a smaller one")
    return content


def _size(size: str | None, generator: "ImageModel") -> tuple[int | None, int | None]:
    """Width and height of a size that is warm."""
    if size is None or size == "auto":
        return None, None
    found = _SIZE.fullmatch(size)
    if found is None or (int(found[1]), int(found[2])) not in generator.offered_sizes:
        warm = ", ".join(f"{width}x{height}" for width, height in generator.offered_sizes)
        raise RequestRejected(f"size = {quoted(size)}: one of {warm}; HFJAX_IMAGE_SIZES adds others")
    return int(found[1]), int(found[2])


def _painted(mask: "Image.Image") -> "Image.Image":
    """White where to draw: OpenAI's masks are transparent there, those without transparency are white already."""
    from PIL import ImageOps

    return ImageOps.invert(mask.getchannel("A")) if mask.has_transparency_data and "A" in mask.getbands() else mask
