"""The sizes that a model sees pictures in, and which of them a picture gets.

Models that take pictures of any size get a few: for each budget of tokens a square, 4:3, 16:9 and their upright forms,
as large as the budget allows. Each is a size that the model's own image processor leaves as it is.
"""

import math
from collections.abc import Iterator, Sequence

from hfjax_app.chat.vision.picture import Grid

ASPECTS = ((1, 1), (4, 3), (3, 4), (16, 9), (9, 16))  # of width and height


def sizes(budget: int, unit: int) -> Iterator[tuple[int, int]]:
    """Heights and widths in pixels, one for each aspect.

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
