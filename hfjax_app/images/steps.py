"""What a request yields while it is drawn: what it waits for, then one step after the other, with its pictures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from PIL import Image

from hfjax_app.images.preview import to_picture
from hfjax_app.images.recipe import Recipe, to_png


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """One picture of a request.

    Attributes:
        seed: of its noise; given again, alone, it gives the same picture. Means nothing where the caller gave latents.
        pixels: the picture before rounding, float32 [height, width, 3] from 0 to 1, at the last step only.
        latents: what it was decoded from, float32 [1, channels, height, width], at the last step only.
        recipe: everything that it was drawn from.
    """

    seed: int
    pixels: np.ndarray | None
    latents: np.ndarray | None
    recipe: Recipe

    @cached_property
    def image(self) -> Image.Image | None:
        """The picture, at the last step only."""
        return None if self.pixels is None else to_picture(self.pixels)

    @property
    def png(self) -> bytes | None:
        """The picture as a PNG file with its recipe inside, at the last step only."""
        return None if self.image is None else to_png(self.image, self.recipe)


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """What a request waits for before its first step, in words, such as its place in the line."""

    reason: str


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageStep:
    """What is known after one denoising step of all pictures of a request.

    Attributes:
        step: 1 for the first.
        steps: how many there will be (some schedulers make one more than asked for).
        seconds: since the request's first step began.
        pictures: as many as were asked for.
        show: makes the previews.
        notice: what the user should know of this request, such as a prompt that was cut; None where there is nothing.
    """

    step: int
    steps: int
    seconds: float
    pictures: tuple[Picture, ...]
    show: Callable[[], Sequence[Image.Image]]
    notice: str | None

    @cached_property
    def previews(self) -> Sequence[Image.Image]:
        """What the model expects each picture to be, at its size; the pictures themselves at the last step.

        Made when they are first looked at: who does not look does not wait for them.
        """
        return self.show()

    @property
    def image(self) -> Image.Image | None:
        """The first picture, at the last step only: all there is where one was asked for."""
        return self.pictures[0].image

    @property
    def is_last(self) -> bool:
        return self.step == self.steps

    @property
    def seconds_left(self) -> float:
        """About how long the steps to come will take."""
        return self.seconds / self.step * (self.steps - self.step)
