"""A picture as a chat model is shown it, and its place among the tokens of a prompt.

Placeholders of all pictures are the same token. In a prompt each has its picture's `id` instead, a negative number, so
that a prefix of one picture never matches another's. Plain Python and numpy: no jax.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hfjax_app.errors import RequestRejected


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """A picture that an image processor has prepared.

    Args:
        pixels: float32 [1, 3, side, side].
    """

    pixels: np.ndarray

    @cached_property
    def id(self) -> int:
        """A negative number that other pixels do not have; it stands in prompts for each of the picture's tokens."""
        return -1 - int.from_bytes(hashlib.sha256(self.pixels.tobytes()).digest())


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacedPicture:
    """A picture whose tokens are at the positions `start` to `stop` - 1."""

    picture: Picture
    start: int
    stop: int


def placed(prompt: Sequence[int], pictures: Sequence[Picture], tokens: int) -> tuple[PlacedPicture, ...]:
    """The places of pictures in a prompt.

    Args:
        prompt: ids of tokens, and each picture's id once for each of its tokens.
        pictures: in their order.
        tokens: that each picture has.

    Raises:
        RequestRejected: they are not all there, or one is at the end, where no token could follow it.
    """
    found, at = [], 0
    for picture in pictures:
        while at < len(prompt) and prompt[at] >= 0:
            at += 1
        stop = at + tokens
        if list(prompt[at:stop]) != [picture.id] * tokens:
            raise RequestRejected(f"pictures: the prompt has no place of {tokens} tokens for each of {len(pictures)}")
        found.append(PlacedPicture(picture=picture, start=at, stop=stop))
        at = stop
    if found and found[-1].stop == len(prompt):
        raise RequestRejected("a prompt can't end with a picture")
    return tuple(found)


def outside_pictures(prompt: Sequence[int], length: int) -> int:
    """The largest number of the prompt's first tokens, at most `length`, that ends inside no picture."""
    while 0 < length < len(prompt) and prompt[length] < 0 and prompt[length - 1] == prompt[length]:
        length -= 1
    return length
