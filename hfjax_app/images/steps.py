"""What a request yields: Waiting, then a step at a time, with its pictures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from PIL import Image

from hfjax_app.images.generation_parameters import GenerationParameters, to_png
from hfjax_app.images.start_picture import Placement


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """One picture of a request.

    Attributes:
        seed: of its noise; the same seed gives the same picture. Without meaning where the caller gave latents.
        pixels: the drawing before rounding, float32 [height, width, 3] from 0 to 1, at the last step only.
        latents: the picture's final latents, float32 [1, channels, height, width], at the last step only.
        parameters: what is needed to draw it again.
        place: in the picture that it was drawn into, at the last step; None: no part of that stays.
    """

    seed: int
    pixels: np.ndarray | None
    latents: np.ndarray | None
    parameters: GenerationParameters
    place: Placement | None = None

    @cached_property
    def image(self) -> Image.Image | None:
        """The picture, at the last step only."""
        if self.pixels is None:
            return None
        drawn = to_picture(self.pixels)
        return drawn if self.place is None else self.place.put_back(drawn)

    @property
    def png(self) -> bytes | None:
        """The picture as a PNG file with its parameters inside, at the last step only."""
        return None if self.image is None else to_png(self.image, self.parameters)


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A request waits before its first step.

    Attributes:
        reason: for the user, such as its place in the queue.
    """

    reason: str


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageStep:
    """The state of a request after one denoising step of all its pictures.

    Attributes:
        step: from 1.
        steps: how many there are (some schedulers make one more than requested).
        seconds: since the request's first step began.
        pictures: as many as requested.
        show: makes the previews.
        notice: a remark for the user, such as a prompt that was cut; or None.
    """

    step: int
    steps: int
    seconds: float
    pictures: tuple[Picture, ...]
    show: Callable[[], Sequence[Image.Image]]
    notice: str | None

    @cached_property
    def previews(self) -> Sequence[Image.Image]:
        """The predicted clean picture of each, at its size; at the last step the pictures themselves.

        They are made at the first access, so that callers without previews do not wait for them.
        """
        return self.show()

    @property
    def image(self) -> Image.Image | None:
        """The first picture, at the last step only."""
        return self.pictures[0].image

    @property
    def is_last(self) -> bool:
        return self.step == self.steps

    @property
    def seconds_left(self) -> float:
        """The estimated time of the remaining steps."""
        return self.seconds / self.step * (self.steps - self.step)


def to_picture(pixels: np.ndarray) -> Image.Image:
    """Pixels, float [height, width, 3] from 0 to 1, rounded to 8 bits as diffusers does."""
    return Image.fromarray((np.nan_to_num(pixels).clip(0, 1) * 255).round().astype(np.uint8))
