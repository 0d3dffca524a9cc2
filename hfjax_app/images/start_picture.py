"""The picture that a drawing starts from: what of it is drawn, its mask as text, and the drawn part put back over it.

Where a part is painted over, the rest of the picture stays as it is: the drawing covers a box of the picture, and only
what the mask covers goes back, with a soft seam. For outpainting the picture lies on a larger canvas, whose new edges
are painted over.
"""

import base64
import hashlib
import math
import re
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageFilter

from hfjax_app.errors import RequestRejected
from hfjax_app.images.request import Box, CompletedRequest, sides_of
from hfjax_app.limits import IMAGE_MAX_SIDE, IMAGE_RESULT_PIXELS
from hfjax_app.pictures import as_seen, is_transparent, scalable

# The longest text: a picture has at most as many latents as pixels.
MASK_CHARACTERS = len(f"{IMAGE_MAX_SIDE}x{IMAGE_MAX_SIDE}:") + 4 * -(-IMAGE_MAX_SIDE * IMAGE_MAX_SIDE // 24)
_FORM = re.compile(r"([0-9]{1,4})x([0-9]{1,4}):([A-Za-z0-9+/]+={0,2})")
_LEAST_MARGIN, _MARGIN = 32, 0.25  # around a marked part that is drawn alone: pixels, and a share of its longer side
_EMPTY = "mask is empty: paint over what should be drawn anew"
_SHAPE_APART = 0.02  # of the ratios of a picture's and its mask's sides
_LANCZOS, _NEAREST = Image.Resampling.LANCZOS, Image.Resampling.NEAREST


@dataclass(frozen=True, kw_only=True, eq=False)
class Placement:
    """Where a drawing lies in the picture that it is drawn into.

    Attributes:
        canvas: the picture in RGB, with the new edges of outpainting.
        box: (left, top, width, height) of the drawing, in pixels of the canvas; it may reach over the edges.
        size: (width, height) of the drawing.
        mask: in latents, bool [height, width], True where to draw.
        softness: the width of the seam, in latents.
    """

    canvas: Image.Image
    box: Box
    size: tuple[int, int]
    mask: np.ndarray
    softness: float

    @property
    def pixels(self) -> np.ndarray:
        """What the drawing starts from, float32 [height, width, 3] from 0 to 1."""
        return np.asarray(_cut(self.canvas, self.box, self.size, _LANCZOS), np.float32) / 255

    def put_back(self, drawn: Image.Image) -> Image.Image:
        """The canvas with the drawn part over it."""
        left, top, right, bottom = inner = _inner(self.box, self.canvas.size)
        place = (right - left, bottom - top)
        within = _in_drawing(inner, self.box, self.size)
        if (place, within) != (self.size, (0, 0, *self.size)):
            drawn = drawn.resize(place, _LANCZOS, box=within)
        seam = self._seam
        seam = seam if seam.size == drawn.size else seam.resize(place, Image.Resampling.BILINEAR, box=within)
        whole = self.canvas.copy()
        whole.paste(drawn, (left, top), seam)
        return whole

    def preview(self, drawn: Image.Image) -> Image.Image:
        """The same, no larger than the drawing: it is shown while the drawing goes on."""
        whole = self.put_back(drawn)
        whole.thumbnail((max(self.size), max(self.size)))
        return whole

    @property
    def _seam(self) -> Image.Image:
        """How much of the drawing goes back, 0 to 255: all where the mask is, less beside it, none farther away."""
        scale = self.size[0] // self.mask.shape[1]
        alpha = self.mask.repeat(scale, 0).repeat(scale, 1).astype(np.float32)
        if radius := round(self.softness * scale / 2):
            grown = (_mean_around(alpha, radius) > 1e-6).astype(np.float32)
            alpha = _mean_around(grown, radius)
        return Image.fromarray((alpha * 255).round().astype(np.uint8))


def placement(request: CompletedRequest, scale: int) -> Placement | None:
    """Where a request's drawing lies in its picture; None where no part of that stays.

    Args:
        request: to the model.
        scale: pixels a side for each latent.

    Raises:
        RequestRejected: the mask is empty, has another shape than the picture, or covers no latent.
    """
    if request.image is None or (request.mask is None and not request.expand):
        return None
    canvas, new = _canvas(request)
    if request.box is not None:
        assert request.mask is not None, "a box is a mask's"
        if request.mask.size != request.size:
            raise RequestRejected(
                "mask of {} x {}: with a box it must be as large as the drawing".format(*request.mask.size)
            )
        box, drawn = request.box, np.asarray(request.mask.convert("L")) >= 128
        left, top, right, bottom = _inner(box, canvas.size)
        if left >= right or top >= bottom:
            raise RequestRejected("box = {},{},{},{}: it lies outside of the picture".format(*box))
    else:
        painted = _painted(request.mask, request.image.size, new)
        if (bounds := painted.getbbox()) is None:
            raise RequestRejected(_EMPTY)
        box = _box(bounds, canvas.size, request)
        drawn = np.asarray(_cut(painted, box, request.size, _NEAREST)) >= 128
    if not drawn.any():
        raise RequestRejected(_EMPTY)
    latents: np.ndarray = drawn[::scale, ::scale]
    if not latents.any():
        raise RequestRejected(
            f"mask of {int(drawn.sum())} pixels: too small or thin to draw in; paint over at least {scale} x {scale}"
        )
    return Placement(canvas=canvas, box=box, size=request.size, mask=latents, softness=request.softness)


def result_size(request: CompletedRequest) -> tuple[int, int]:
    """(width, height) of the picture that a request gives."""
    if request.image is None or (request.mask is None and not request.expand):
        return request.size
    width, height, left, right, up, down = _canvas_sides(request)
    return left + width + right, up + height + down


def _canvas_sides(request: CompletedRequest) -> tuple[int, int, int, int, int, int]:
    """Width and height of the picture on the canvas, and of the edges left, right, up and down of it.

    The picture keeps its resolution, unless it is smaller than the drawing of the whole, or very large.
    """
    assert request.image is not None
    (width, height), (left, right, up, down) = request.image.size, sides_of(request.expand)
    wide, tall = left + width + right, up + height + down
    factor = min(1.0, math.sqrt(IMAGE_RESULT_PIXELS / (wide * tall)))
    if request.region == "whole":
        factor = max(factor, min(request.width / wide, request.height / tall))
    width, height = (max(1, round(side * factor)) for side in (width, height))
    left, right, up, down = (round(side * factor) for side in (left, right, up, down))
    return width, height, left, right, up, down


def _canvas(request: CompletedRequest) -> tuple[Image.Image, Image.Image]:
    """The picture on its canvas, RGB, and the canvas' new edges, white in "L".

    The edges begin with the colours of the picture's border, blurred: a drawing of a strength below 1 shows them.
    """
    assert request.image is not None
    width, height, left, right, up, down = _canvas_sides(request)
    picture = scalable(request.image)
    if picture.size != (width, height):
        picture = picture.resize((width, height), _LANCZOS)
    picture = as_seen(picture, request.background)
    whole = (left + width + right, up + height + down)
    new = Image.new("L", whole, 255)
    new.paste(0, (left, up, left + width, up + height))
    if whole == picture.size:
        return picture, new
    edges = Image.fromarray(np.pad(np.asarray(picture), ((up, down), (left, right), (0, 0)), mode="edge"))
    edges = edges.filter(ImageFilter.BoxBlur(max(left, right, up, down) // 4))
    edges.paste(picture, (left, up))
    return edges, new


def _painted(mask: Image.Image | None, picture: tuple[int, int], new: Image.Image) -> Image.Image:
    """White where to draw, in "L" and of the canvas' size: what the mask paints over, and the canvas' new edges.

    Args:
        mask: of the picture's shape; None: only the edges are drawn.
        picture: (width, height) of the picture.
        new: the edges.
    """
    if mask is None:
        return new
    if abs(math.log(mask.width / mask.height * picture[1] / picture[0])) > _SHAPE_APART:
        raise RequestRejected(
            f"mask of {mask.width} x {mask.height}: it must have the shape of the picture, {picture[0]} x {picture[1]}"
        )
    kept = new.point(lambda value: 255 - value).getbbox()
    assert kept is not None, "the picture is on the canvas"
    left, up, right, down = kept
    painted = new.copy()
    painted.paste(mask.convert("L").resize((right - left, down - up), _NEAREST), (left, up))
    return painted.point(lambda value: 255 if value >= 128 else 0)


def _box(bounds: tuple[int, int, int, int], canvas: tuple[int, int], request: CompletedRequest) -> Box:
    """What of the canvas is drawn: of the drawing's shape, and with everything that is painted over.

    Either as much of the canvas as has this shape, or the marked part alone with a margin.

    Args:
        bounds: (left, top, right, bottom) of what is painted over.
        canvas: (width, height).
        request: its size and region.
    """
    painted = (bounds[2] - bounds[0], bounds[3] - bounds[1])
    shape = request.width / request.height
    if request.region == "marked":
        margin = max(_LEAST_MARGIN, round(_MARGIN * max(painted)))
        wide, tall = painted[0] + 2 * margin, painted[1] + 2 * margin
        middle = ((bounds[0] + bounds[2]) / 2, (bounds[1] + bounds[3]) / 2)
    else:
        wide = max(round(min(canvas[0], canvas[1] * shape)), painted[0])
        tall = max(round(min(canvas[1], canvas[0] / shape)), painted[1])
        middle = (canvas[0] / 2, canvas[1] / 2)
    box = (max(wide, round(tall * shape)), max(tall, round(wide / shape)))
    left, top = (
        _slid(round(at - side / 2), side, whole, (first, last))
        for at, side, whole, first, last in zip(middle, box, canvas, bounds[:2], bounds[2:], strict=True)
    )
    return left, top, *box


def _slid(begin: int, side: int, whole: int, painted: tuple[int, int]) -> int:
    """A box's begin, moved so that it lies on the canvas, if it has room there, and covers what is painted over."""
    begin = min(max(begin, 0), whole - side) if side <= whole else (whole - side) // 2
    return min(max(begin, painted[1] - side), painted[0])


def _inner(box: Box, canvas: tuple[int, int]) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) of a box's part on the canvas."""
    left, top, width, height = box
    return max(left, 0), max(top, 0), min(left + width, canvas[0]), min(top + height, canvas[1])


def _in_drawing(inner: tuple[int, int, int, int], box: Box, size: tuple[int, int]) -> tuple[float, float, float, float]:
    """A part of a box in pixels of the drawing."""
    across, down = size[0] / box[2], size[1] / box[3]
    left, top = (inner[0] - box[0]) * across, (inner[1] - box[1]) * down
    right, bottom = (inner[2] - box[0]) * across, (inner[3] - box[1]) * down
    return left, top, min(right, size[0]), min(bottom, size[1])


def _cut(canvas: Image.Image, box: Box, size: tuple[int, int], resampling: Image.Resampling) -> Image.Image:
    """A box of the canvas scaled to this size. Beyond the canvas it repeats its border, in "L" it is black there."""
    inner = _inner(box, canvas.size)
    left, top, right, bottom = (round(side) for side in _in_drawing(inner, box, size))
    left, top = min(left, size[0] - 1), min(top, size[1] - 1)
    place = (max(right, left + 1) - left, max(bottom, top + 1) - top)
    part = canvas.crop(inner)
    part = part if part.size == place else part.resize(place, resampling)
    if place == size:
        return part
    if canvas.mode == "L":
        whole = Image.new("L", size)
        whole.paste(part, (left, top))
        return whole
    around = ((top, size[1] - top - place[1]), (left, size[0] - left - place[0]), (0, 0))
    return Image.fromarray(np.pad(np.asarray(part), around, mode="edge"))


def _mean_around(values: np.ndarray, radius: int) -> np.ndarray:
    """The mean of each value's square of 2 * radius + 1 a side; beyond the edges the last values repeat."""
    side = 2 * radius + 1
    for axis in (0, 1):
        around = [(radius + 1, radius) if each == axis else (0, 0) for each in (0, 1)]
        sums = np.pad(values, around, mode="edge").astype(np.float64)
        sums = sums.cumsum(axis)
        count = values.shape[axis]
        values = (np.take(sums, range(side, side + count), axis) - np.take(sums, range(count), axis)) / side
    return values


def start_pixels(picture: Image.Image, size: tuple[int, int], background: str) -> np.ndarray:
    """`start_image` as float32 [height, width, 3] from 0 to 1."""
    return np.asarray(start_image(picture, size, background), np.float32) / 255


def start_image(picture: Image.Image, size: tuple[int, int], background: str) -> Image.Image:
    """The picture to start from, RGB: scaled to cover the size, with its edges cut.

    Args:
        picture: of any size.
        size: (width, height) of the drawing in pixels.
        background: "#rrggbb", where the picture is transparent.
    """
    picture = scalable(picture)
    if picture.size != size:
        factor = max(size[0] / picture.width, size[1] / picture.height)
        # By rounding, a quotient can exceed the picture's side; Pillow refuses a box outside the picture.
        wide, tall = min(size[0] / factor, picture.width), min(size[1] / factor, picture.height)
        left, top = (picture.width - wide) / 2, (picture.height - tall) / 2
        picture = picture.resize(size, _LANCZOS, box=(left, top, left + wide, top + tall))
    return as_seen(picture, background)


def digest(picture: Image.Image | None) -> str | None:
    """SHA-256 of a picture's size and pixels (with alpha, if some is transparent), in hexadecimal; None without one."""
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
