"""A picture as a chat model is shown it, and its place among the tokens of a prompt.

A model sees pictures of a few sizes, its grids. What stands for a picture in a prompt are the tokens of its grid: a
placeholder for each embedding, and with some models breaks between rows. Placeholders of all pictures are the same
token, so in a prompt each of these tokens is the picture's `id` instead, a negative number: a prefix of one picture
never matches another's. Plain Python and numpy: no jax.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hfjax_app.errors import RequestRejected

PLACEHOLDER = -1  # in the tokens of a grid


@dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """A size that pictures are brought to. Each has programs of its own.

    Args:
        height, width: pixels.
        tokens: int32 [count]: ids of tokens, and PLACEHOLDER for each embedding; begins and ends with one.
        pixels: the shape of the prepared picture.
        others: what the image processor makes besides pixels, the same for all pictures of this size.
    """

    height: int
    width: int
    tokens: np.ndarray
    pixels: tuple[int, ...]
    others: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.width}x{self.height}"

    @cached_property
    def ids(self) -> list[int]:
        """The tokens as a list."""
        ids: list[int] = self.tokens.tolist()
        return ids

    @property
    def count(self) -> int:
        """Tokens of a prompt that a picture takes."""
        return len(self.tokens)

    @cached_property
    def embeddings(self) -> int:
        """Of a picture."""
        return self.ids.count(PLACEHOLDER)

    @property
    def picture_bytes(self) -> int:
        """Of a prepared picture on the host."""
        return 4 * math.prod(self.pixels)


@dataclass(frozen=True, kw_only=True, eq=False)
class VisionPicture:
    """A picture that an image processor has prepared.

    Args:
        grid: the size that it has.
        pixels: float32, of the grid's shape.
    """

    grid: Grid
    pixels: np.ndarray

    @cached_property
    def id(self) -> int:
        """A negative number that other pictures do not have; it stands in prompts for each of the picture's tokens."""
        return -1 - int.from_bytes(hashlib.sha256(self.grid.name.encode() + self.pixels.tobytes()).digest())


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacedPicture:
    """A picture whose tokens are at the positions `start` to `stop` - 1."""

    picture: VisionPicture
    start: int

    @property
    def stop(self) -> int:
        return self.start + self.picture.grid.count


def placed(prompt: Sequence[int], pictures: Sequence[VisionPicture]) -> tuple[PlacedPicture, ...]:
    """The places of pictures in a prompt.

    Args:
        prompt: ids of tokens, and each picture's id once for each of its tokens.
        pictures: in their order.

    Raises:
        RequestRejected: they are not all there, or one is at the end, where no token could follow it.
    """
    found, at = list[PlacedPicture](), 0
    for picture in pictures:
        while at < len(prompt) and prompt[at] >= 0:
            at += 1
        place = PlacedPicture(picture=picture, start=at)
        if list(prompt[at : place.stop]) != [picture.id] * picture.grid.count:
            raise RequestRejected(
                f"pictures: the prompt has no place of {picture.grid.count} tokens for picture {len(found) + 1}"
            )
        found.append(place)
        at = place.stop
    if found and found[-1].stop == len(prompt):
        raise RequestRejected("a prompt can't end with a picture")
    return tuple(found)


def outside_pictures(prompt: Sequence[int], length: int) -> int:
    """The largest number of the prompt's first tokens, at most `length`, that ends inside no picture."""
    while 0 < length < len(prompt) and prompt[length] < 0 and prompt[length - 1] == prompt[length]:
        length -= 1
    return length


ASPECTS = ((1, 1), (4, 3), (3, 4), (16, 9), (9, 16))  # of width and height


def sizes(budget: int, unit: int) -> Iterator[tuple[int, int]]:
    """Heights and widths in pixels that the model's own image processor leaves as they are, one for each aspect.

    Args:
        budget: tokens that a picture may take.
        unit: pixels of the side of the square that a token stands for.
    """
    for width, height in ASPECTS:
        columns, rows = (math.isqrt(budget * side // other) for side, other in ((width, height), (height, width)))
        yield rows * unit, columns * unit


def chosen(grids: Sequence[Sequence[Grid]], size: tuple[int, int], detail: str) -> Grid:
    """The grid for a picture: of the aspect that is nearest to its own.

    Args:
        grids: of each budget, from the smallest.
        size: its width and height in pixels.
        detail: "low", the smallest budget; "high", the largest; "auto", the smallest that loses none of its pixels, or
            the largest.
    """
    width, height = size

    def nearest(grids: Sequence[Grid]) -> Grid:
        return min(grids, key=lambda grid: abs(math.log((grid.width * height) / (grid.height * width))))

    if detail == "high":
        return nearest(grids[-1])
    if detail == "low":
        return nearest(grids[0])
    each = [nearest(of_budget) for of_budget in grids]
    return next((grid for grid in each if grid.width * grid.height >= width * height), each[-1])
