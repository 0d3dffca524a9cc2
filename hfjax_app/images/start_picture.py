"""The picture that a drawing starts from, and its mask: scaled to the drawing's size, and as text in its file."""

import base64
import hashlib
import re

import numpy as np
from PIL import Image

from hfjax_app.errors import RequestRejected
from hfjax_app.limits import IMAGE_MAX_SIDE
from hfjax_app.pictures import as_seen, is_transparent, scalable

# The longest text: a picture has at most as many latents as pixels.
MASK_CHARACTERS = len(f"{IMAGE_MAX_SIDE}x{IMAGE_MAX_SIDE}:") + 4 * -(-IMAGE_MAX_SIDE * IMAGE_MAX_SIDE // 24)
_FORM = re.compile(r"([0-9]{1,4})x([0-9]{1,4}):([A-Za-z0-9+/]+={0,2})")


def start_pixels(picture: Image.Image, size: tuple[int, int], background: str) -> np.ndarray:
    """The picture to start from, float32 [height, width, 3] from 0 to 1: scaled to cover the size, with its edges cut.

    Args:
        picture: of any size.
        size: (width, height) of the drawing in pixels.
        background: "#rrggbb", where the picture is transparent.
    """
    scaled = _covering(scalable(picture), size, Image.Resampling.LANCZOS)
    return np.asarray(as_seen(scaled, background), np.float32) / 255


def latent_mask(mask: Image.Image, size: tuple[int, int], scale: int) -> np.ndarray:
    """A mask in latents, bool [height, width], True where to draw, by the nearest pixel as in diffusers.

    Args:
        mask: a picture of any size, white where to draw.
        size: (width, height) of the drawing in pixels.
        scale: pixels a side for each latent.

    Raises:
        RequestRejected: the mask covers no latent.
    """
    drawn = np.asarray(_covering(mask.convert("L"), size, Image.Resampling.NEAREST)) >= 128
    if not drawn.any():
        raise RequestRejected("mask is empty: paint over what should be drawn anew")
    latents: np.ndarray = drawn[::scale, ::scale]
    if not latents.any():
        raise RequestRejected(
            f"mask of {int(drawn.sum())} pixels: too small or thin to draw in; paint over at least {scale} x {scale}"
        )
    return latents


def digest(picture: Image.Image | None) -> str | None:
    """SHA-256 of a picture's size and pixels (with alpha, if some is transparent), in hexadecimal; None for None."""
    if picture is None:
        return None
    colour = picture.convert("RGBA" if is_transparent(picture) else "RGB")
    return hashlib.sha256(f"{colour.size}".encode() + colour.tobytes()).hexdigest()


def to_text(mask: np.ndarray) -> str:
    """A mask as text, such as "8x2:8PA=": width, height, and the bits in base64, row by row, the highest bit first.

    Args:
        mask: bool [height, width] in latents, True where to draw.
    """
    tall, wide = mask.shape
    return f"{wide}x{tall}:{base64.b64encode(np.packbits(mask).tobytes()).decode()}"


def from_text(text: str) -> np.ndarray:
    """The mask of a text from `to_text`, bool [height, width].

    Raises:
        RequestRejected: `to_text` does not write such a text.
    """
    if found := _FORM.fullmatch(text):
        wide, tall = int(found[1]), int(found[2])
        try:
            packed = np.frombuffer(base64.b64decode(found[3], validate=True), np.uint8)
        except ValueError:
            packed = np.zeros(0, np.uint8)
        if packed.size == -(-wide * tall // 8):
            mask = np.unpackbits(packed, count=wide * tall).reshape(tall, wide).astype(bool)
            if to_text(mask) == text:  # only the canonical form
                return mask
    raise RequestRejected(f"the picture's settings are forged or damaged: mask = {text[:40]!r}")


def _covering(picture: Image.Image, size: tuple[int, int], resampling: Image.Resampling) -> Image.Image:
    """The picture scaled and cut around its middle to exactly this size."""
    if picture.size == size:
        return picture
    factor = max(size[0] / picture.width, size[1] / picture.height)
    # By rounding, a quotient can exceed the picture's side; Pillow refuses a box outside the picture.
    wide, tall = min(size[0] / factor, picture.width), min(size[1] / factor, picture.height)
    left, top = (picture.width - wide) / 2, (picture.height - tall) / 2
    return picture.resize(size, resampling, box=(left, top, left + wide, top + tall))
