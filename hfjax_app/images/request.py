"""Requests to an image model, checked before anything is computed."""

import secrets
from dataclasses import dataclass

import numpy as np
from PIL import Image

from hfjax_app.errors import RequestRejected
from hfjax_app.images.prompt_weights import check_weights
from hfjax_app.limits import IMAGE_MAX_CHARACTERS
from hfjax_app.pictures.colours import WHITE, as_seen, scalable
from hfjax_app.validation import checked_text, quoted

MAX_STEPS = 100
MAX_GUIDANCE = 20.0
SEEDS = 2**64
MAX_SEED = SEEDS - 1
MAX_IMAGES = 4
VARIATION = 0.3  # of variations of a seed, unless another is asked for: the picture changes, its layout stays


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageRequest:
    """One request whose values are within the limits. Other fields are as in `ImageGenerator.generate`.

    Attributes:
        seeds: one for each picture.
        size: (width, height) in pixels.
        image: the picture to start from, float32 [height, width, 3] from 0 to 1, or None.
        background: the colour of the picture where it was transparent, "#rrggbb"; None: it was not.
        variation_of: the seed that the pictures stay near; None: each is of its own seed alone.
        mask: in latents, True where to draw and False where to keep the picture, bool [height, width], or None.
    """

    prompt: str
    negative_prompt: str
    steps: int
    guidance_scale: float
    seeds: tuple[int, ...]
    size: tuple[int, int]
    scheduler: str
    image: np.ndarray | None
    background: str | None
    mask: np.ndarray | None
    strength: float
    variation_of: int | None
    variation: float

    @property
    def start(self) -> int:
        """The first steps that are left out with a picture to start from; as in diffusers."""
        return 0 if self.image is None else self.steps - min(int(self.steps * self.strength), self.steps)

    def latent_mask(self, scale: int) -> np.ndarray:
        """The mask in a step's form, float32 [1, 1, height, width]; all ones without a mask."""
        if self.mask is None:
            return np.ones((1, 1, self.size[1] // scale, self.size[0] // scale), np.float32)
        return self.mask[None, None].astype(np.float32)


def whole_number(name: str, value: object, low: int, high: int) -> int:
    """The value as an int.

    Raises:
        RequestRejected: it is not a whole number, or out of range.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not low <= value <= high:
        raise RequestRejected(f"{name} = {quoted(value)}: must be a whole number from {low} to {high}")
    return int(value)


def real_number(name: str, value: object, low: float, high: float) -> float:
    """The value as a float.

    Raises:
        RequestRejected: it is not a number, or out of range.
    """
    if not isinstance(value, int | float | np.floating) or isinstance(value, bool) or not low <= value <= high:
        raise RequestRejected(f"{name} = {quoted(value)}: must be a number from {low:g} to {high:g}")
    return float(value)


def checked_prompts(prompt: object, negative_prompt: object) -> tuple[str, str]:
    """Both prompts, if a tokenizer can take them.

    Raises:
        RequestRejected: see `checked_text` and `check_weights`.
    """
    prompt = checked_text(prompt, "prompt", IMAGE_MAX_CHARACTERS)
    negative = checked_text(negative_prompt, "negative prompt", IMAGE_MAX_CHARACTERS, may_be_blank=True)
    for text in (prompt, negative):
        check_weights(text)
    return prompt, negative


def checked_seeds(seed: object, images: object) -> tuple[int, ...]:
    """A seed for each picture: the given one (None: a random one of 32 bits) and the following ones.

    Raises:
        RequestRejected: a value is out of range.
    """
    count = whole_number("images", images, 1, MAX_IMAGES)
    first = secrets.randbits(32) if seed is None else whole_number("seed", seed, 0, MAX_SEED)
    return tuple((first + i) % SEEDS for i in range(count))


def check_before_loading(
    prompt: object,
    *,
    negative_prompt: object = "",
    steps: object = None,
    guidance_scale: object = None,
    seed: object = None,
) -> None:
    """Refuse values that no model takes. Sizes, schedulers and the most steps depend on the model. None is its default.

    Raises:
        RequestRejected: the value and the limit.
    """
    checked_prompts(prompt, negative_prompt)
    checked_seeds(seed, 1)
    if steps is not None:
        whole_number("steps", steps, 1, MAX_STEPS)
    if guidance_scale is not None:
        real_number("guidance scale", guidance_scale, 0, MAX_GUIDANCE)


def checked_picture(
    image: object, mask: object, size: tuple[int, int], scale: int, background: str = WHITE
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The picture to start from and the mask in the form of `ImageRequest`.

    Args:
        image: a PIL picture, or None: `as_seen`, scaled to cover the size, with its edges cut.
        mask: a PIL picture of any size, white where to draw, or None.
        size: (width, height).
        scale: pixels a side for each latent.
        background: "#rrggbb", where the picture is transparent.

    Raises:
        RequestRejected: not pictures, a mask without a picture, or as `checked_mask`.
    """
    picture, drawn = _picture_or_none("image", image), _picture_or_none("mask", mask)
    if picture is None:
        if drawn is not None:
            raise RequestRejected("mask: there is no picture to draw into; upload one")
        return None, None
    scaled = _covering(scalable(picture), size, Image.Resampling.LANCZOS)
    pixels = np.asarray(as_seen(scaled, background), np.float32) / 255
    return pixels, None if drawn is None else checked_mask(drawn, size, scale)


def _picture_or_none(name: str, value: object) -> Image.Image | None:
    if value is not None and not isinstance(value, Image.Image):
        raise RequestRejected(f"{name}: must be a picture, not {type(value).__name__}")
    return value


def checked_mask(mask: Image.Image, size: tuple[int, int], scale: int) -> np.ndarray:
    """A mask in latents, bool [height, width], by the nearest pixel as in diffusers. Arguments: see `checked_picture`.

    Raises:
        RequestRejected: the mask covers no latent.
    """
    drawn = np.asarray(_covering(mask.convert("L"), size, Image.Resampling.NEAREST)) >= 128
    if not drawn.any():
        raise RequestRejected("mask is empty: paint over what should be drawn anew")
    latents = drawn[::scale, ::scale]
    if not latents.any():
        raise RequestRejected(
            f"mask of {int(drawn.sum())} pixels: too small or thin to draw in; paint over at least {scale} x {scale}"
        )
    return latents


def _covering(picture: Image.Image, size: tuple[int, int], resampling: Image.Resampling) -> Image.Image:
    """The picture scaled and cut around its middle to exactly this size."""
    if picture.size == size:
        return picture
    factor = max(size[0] / picture.width, size[1] / picture.height)
    # By rounding, a quotient can exceed the picture's side; Pillow refuses a box outside the picture.
    wide, tall = min(size[0] / factor, picture.width), min(size[1] / factor, picture.height)
    left, top = (picture.width - wide) / 2, (picture.height - tall) / 2
    return picture.resize(size, resampling, box=(left, top, left + wide, top + tall))
