"""A mask of one bit for each latent, and its text form in generation parameters."""

import base64
import re

import numpy as np

from hfjax_app.errors import RequestRejected
from hfjax_app.limits import IMAGE_MAX_SIDE

# The longest text: a picture has at most as many latents as pixels.
MASK_CHARACTERS = len(f"{IMAGE_MAX_SIDE}x{IMAGE_MAX_SIDE}:") + 4 * -(-IMAGE_MAX_SIDE * IMAGE_MAX_SIDE // 24)
_FORM = re.compile(r"([0-9]{1,4})x([0-9]{1,4}):([A-Za-z0-9+/]+={0,2})")


def to_text(mask: np.ndarray) -> str:
    """The mask as text, such as "8x2:8PA=": width, height, and the bits in base64, row by row, the highest bit first.

    Args:
        mask: bool [height, width], True where to draw.
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
