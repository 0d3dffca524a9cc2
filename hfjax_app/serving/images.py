"""The replica of an image model."""

from collections.abc import AsyncGenerator, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from PIL import Image

from hfjax_app.images.interface import ImageModel
from hfjax_app.images.request import ImageRequest
from hfjax_app.limits import IMAGES_AT_ONCE
from hfjax_app.service.images import iterate_in_thread
from hfjax_app.serving.refusal import Refusal
from hfjax_app.serving.replica import Replica
from hfjax_app.settings import Settings

if TYPE_CHECKING:  # jax is imported when the model is loaded
    from hfjax_app.images.steps import ImageStep, Picture, Waiting


@dataclass(frozen=True)
class Previews:
    """The previews of a step that has left its process."""

    pictures: tuple[Image.Image, ...]

    def __call__(self) -> Sequence[Image.Image]:
        return self.pictures


@dataclass(frozen=True)
class Finished:
    """The previews of a last step: its pictures, which it has already."""

    pictures: "tuple[Picture, ...]"

    def __call__(self) -> Sequence[Image.Image]:
        return [picture.image for picture in self.pictures if picture.image is not None]


class ImageReplica(Replica[ImageModel]):
    """Draws with an image model. `ImageModel` says what the methods take; what they raise is returned as a Refusal."""

    kind = "images"
    described = ("facts", "offered_sizes")

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self._threads = ThreadPoolExecutor(IMAGES_AT_ONCE, "images")

    async def generate(
        self, request: ImageRequest, previews: bool, client: str
    ) -> "AsyncGenerator[ImageStep | Waiting | Refusal, None]":
        """Closed when the ingress cancels the call, which ends the work after the present step."""
        try:
            steps = self._portable(self.model.generate(request, previews=previews, client=client), previews)
            async with aclosing(iterate_in_thread(steps, self._threads)) as running:
                async for step in running:
                    yield step
        except Exception as error:
            yield Refusal.of(error)

    @staticmethod
    def _portable(
        steps: "Generator[ImageStep | Waiting, None, None]", previews: bool
    ) -> "Generator[ImageStep | Waiting, None, None]":
        """The steps without what can't leave this process: previews are made now, and latents stay here."""
        from hfjax_app.images.steps import ImageStep

        with closing(steps):
            for step in steps:
                if not isinstance(step, ImageStep):
                    yield step
                    continue
                pictures = tuple(replace(picture, latents=None) for picture in step.pictures)
                show = Finished(pictures) if step.is_last else Previews(tuple(step.previews) if previews else ())
                yield replace(step, pictures=pictures, show=show)

    def figures(self) -> dict[str, int]:
        return {"steps": self.model.steps}
