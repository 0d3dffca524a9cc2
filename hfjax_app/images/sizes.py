"""The sizes of pictures that a model draws."""

import math

from hfjax_app.errors import RequestRejected
from hfjax_app.limits import IMAGE_MAX_SIDE

SIZE_STEP = 8
MOST_PIXELS = 4  # times the pixels of the checkpoint's own size


class Sizes:
    """The limits on a picture's size.

    Args:
        own: (width, height) in pixels of the pictures that the checkpoint was trained for.
        patch: pixels a side of the denoiser's smallest unit.
    """

    def __init__(self, own: tuple[int, int], patch: int):
        self._own, self._patch = own, patch
        self._least = min(32, *own)
        self._most_pixels = MOST_PIXELS * own[0] * own[1]

    def checked(self, width: object, height: object) -> tuple[int, int]:
        """(width, height); None stands for the checkpoint's own.

        Raises:
            RequestRejected: not a whole number, not a multiple of the model's unit, too small or too large.
        """
        own = dict(zip(("width", "height"), self._own, strict=True))
        for name, value in {"width": width, "height": height}.items():
            if value is None:
                continue
            if type(value) is not int or not self._least <= value <= IMAGE_MAX_SIDE or value % SIZE_STEP:
                raise RequestRejected(
                    f"{name} = {value!r}: must be a multiple of {SIZE_STEP} from {self._least} to {IMAGE_MAX_SIDE}"
                )
            own[name] = value
        wide, tall = own.values()
        if wide * tall > self._most_pixels:
            raise RequestRejected(f"size = {wide} x {tall}: at most {self._most_pixels:,} pixels with this model")
        if wide % self._patch or tall % self._patch:
            raise RequestRejected(f"size = {wide} x {tall}: must be multiples of {self._patch} with this model")
        return wide, tall

    def nearest(self, width: int, height: int) -> tuple[int, int]:
        """The size nearest to this one, of about its shape, that `checked` takes."""
        unit = math.lcm(SIZE_STEP, self._patch)
        least, sides = -(-self._least // unit) * unit, (max(width, 1), max(height, 1))
        factor = min(1.0, IMAGE_MAX_SIDE / max(sides), math.sqrt(self._most_pixels / math.prod(sides)))
        wide, tall = (max(least, round(side * factor / unit) * unit) for side in sides)
        while wide * tall > self._most_pixels:  # by rounding, or by the smallest side of a long picture
            wide, tall = (wide - unit, tall) if wide > tall else (wide, tall - unit)
        return wide, tall
