"""Pictures from outside: untrusted bytes become a PIL picture or are refused, at a bounded cost, and pixels become
colours as they are seen, in sRGB with what is transparent on a background."""

import base64
import io
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import ExifTags, Image, ImageCms, ImageOps

from hfjax_app.errors import RequestRejected
from hfjax_app.limits import PICTURE_MAX_BYTES, PICTURE_MAX_PIXELS, PICTURE_MAX_SIDE
from hfjax_app.validation import quoted

FORMATS = ("PNG", "JPEG", "WEBP")
# The first bytes of other formats.
_OTHER_FORMATS = {
    b"GIF8": "GIF",
    b"BM": "BMP",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"%PDF": "PDF",
    b"<svg": "SVG",
    b"<?xml": "SVG",
    b"8BPS": "Photoshop's format",
    b"\xff\x0a": "JPEG XL",
    b"\0\0\0\x0cJXL ": "JPEG XL",
}
_HEIF = {b"avif": "AVIF", b"avis": "AVIF"}  # by the brand behind `ftyp`; the others are HEIC
_LYING = (5, 6, 7, 8)  # orientations whose width is the height of what is seen
WHITE = "#ffffff"  # the background that web pages and web UIs have
_MOST_PROFILE_BYTES = 4 << 20  # profiles of printers have a megabyte or two

T = TypeVar("T")


def read_file(path: Path, what: str) -> bytes:
    """A file's content, if it is within the upload limit.

    Raises:
        RequestRejected: it can't be read or is too large.
    """
    try:
        size = path.stat().st_size
        if size > PICTURE_MAX_BYTES:
            raise RequestRejected(f"{what} of {size / (1 << 20):.1f} MB: at most {PICTURE_MAX_BYTES >> 20} MB")
        return path.read_bytes()
    except OSError as error:
        raise RequestRejected(f"{what} can't be read: {error.strerror or error}") from None


def from_data_url(text: object, what: str) -> bytes:
    """The content of a data URL, or of its base64 part alone.

    Raises:
        RequestRejected: it is not a data URL in base64, or too large.
    """
    if not isinstance(text, str):
        raise RequestRejected(f"{what}: must be a data URL, not {type(text).__name__}")
    if len(text) > PICTURE_MAX_BYTES * 3 // 2:
        raise RequestRejected(f"{what} of {len(text) / (1 << 20):.1f} MB of text: at most {PICTURE_MAX_BYTES >> 20} MB")
    try:
        return base64.b64decode(text.rpartition("base64,")[2], validate=True)
    except ValueError:
        raise RequestRejected(f"{what}: must be a data URL in base64") from None


def read_picture(data: object, what: str) -> Image.Image:
    """The decoded picture, rotated by its EXIF orientation; the first frame of an animation (info["frames"]: how many).

    The size is read from the header before decoding, so that a decompression bomb costs nothing.

    Args:
        data: the file's bytes, untrusted.
        what: the picture's name in messages, such as "mask".

    Raises:
        RequestRejected: not a PNG, JPEG or WebP file, damaged, or too large.
    """

    def decoded(picture: Image.Image) -> Image.Image:
        picture.load()
        turned = _turned(picture)
        turned.info = picture.info | {"frames": getattr(picture, "n_frames", 1)}
        return _in_8_bits(turned)

    return _opened(data, what, decoded)


def size_of(data: object, what: str) -> tuple[int, int]:
    """Width and height of a picture as it is seen, read from the file's header: nothing is decoded.

    Raises:
        RequestRejected: as `read_picture`, where the header tells it.
    """

    def turned(picture: Image.Image) -> tuple[int, int]:
        with suppress(Exception):  # as in `_turned`
            if picture.getexif().get(ExifTags.Base.Orientation) in _LYING:
                return picture.height, picture.width
        return picture.size

    return _opened(data, what, turned)


def _opened(data: object, what: str, result: Callable[[Image.Image], T]) -> T:
    """The result of an opened picture, whose size was checked before anything is decoded."""
    if not isinstance(data, bytes):
        raise RequestRejected(f"{what}: must be a picture file, not {type(data).__name__}")
    if len(data) > PICTURE_MAX_BYTES:
        raise RequestRejected(f"{what} of {len(data) / (1 << 20):.1f} MB: at most {PICTURE_MAX_BYTES >> 20} MB")
    try:
        picture = Image.open(io.BytesIO(data), formats=FORMATS)
        if max(picture.size) > PICTURE_MAX_SIDE:
            raise RequestRejected(
                f"{what} of {picture.width} x {picture.height} pixels: at most {PICTURE_MAX_SIDE} a side"
            )
        if picture.width * picture.height <= PICTURE_MAX_PIXELS:
            return result(picture)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):  # Pillow's own limit is higher
        pass
    except RequestRejected:
        raise
    except Exception as error:  # Pillow's decoders raise many kinds of errors on damaged files
        raise RequestRejected(f"{what} can't be read as a PNG, JPEG or WebP picture: {_reason(data)}") from error
    raise RequestRejected(f"{what} has too many pixels: at most {PICTURE_MAX_PIXELS // 10**6} million")


def _turned(picture: Image.Image) -> Image.Image:
    """The picture as it was held. Cameras and editors write EXIF data that Pillow can't read: then as it is."""
    try:
        return ImageOps.exif_transpose(picture)
    except Exception:  # Pillow's reader of EXIF raises many kinds of errors
        return picture.copy()


def _reason(data: bytes) -> str:
    """Why Pillow can't read a file."""
    if data[:4] in (b"\x89PNG", b"RIFF") or data[:2] == b"\xff\xd8":
        return "it is damaged"
    if data[4:8] == b"ftyp":
        return f"it is {_HEIF.get(data[8:12], 'HEIC, as phones save photographs')}; save or send it as JPEG"
    known = next((name for mark, name in _OTHER_FORMATS.items() if data.lstrip().startswith(mark)), None)
    return "it is none" if known is None else f"it is {known}; save it as PNG"


def _in_8_bits(picture: Image.Image) -> Image.Image:
    """A 16-bit grey picture by its high bytes, as Pillow reads 16-bit colours; Pillow would clip grey to white."""
    if not picture.mode.startswith("I"):
        return picture
    grey = Image.fromarray((np.asarray(picture) >> 8).clip(0, 255).astype(np.uint8))
    grey.info = {name: value for name, value in picture.info.items() if name != "transparency"}  # of 16 bits
    return grey


def is_transparent(picture: Image.Image) -> bool:
    """Whether some of it is transparent, in part at least."""
    if not picture.has_transparency_data:
        return False
    least, _ = picture.convert("RGBA").getchannel("A").getextrema()
    return isinstance(least, int | float) and least < 255


def scalable(picture: Image.Image) -> Image.Image:
    """The picture in a mode whose pixels can be averaged, transparent ones by their share."""
    if picture.has_transparency_data:
        return picture.convert("RGBA")
    return picture if picture.mode in ("RGB", "L", "CMYK") else picture.convert("RGB")


def checked_colour(name: str, value: object) -> str:
    """A colour as it stands in pages, "#rrggbb" in small letters.

    Raises:
        RequestRejected: it is none.
    """
    if not isinstance(value, str) or not re.fullmatch("#[0-9a-fA-F]{6}", value):
        raise RequestRejected(f"{name} = {quoted(value)}: must be a colour such as {WHITE}")
    return value.lower()


def as_seen(picture: Image.Image, background: str = WHITE) -> Image.Image:
    """The picture in RGB on a background, "#rrggbb".

    Its colour profile counts; without one, CMYK is converted by the usual formula.

    The colours that files have under transparent pixels, mostly black, are never seen.
    """
    alpha = picture.convert("RGBA").getchannel("A") if picture.has_transparency_data else None
    colours = _in_srgb(picture)
    if alpha is None:
        return colours
    return Image.composite(colours, Image.new("RGB", colours.size, background), alpha)


def _in_srgb(picture: Image.Image) -> Image.Image:
    profile = picture.info.get("icc_profile")
    # palettes and transparent grey have their profile's colours only as RGB; alpha is apart
    source = picture if picture.mode in ("RGB", "L", "CMYK") else picture.convert("RGB")
    if isinstance(profile, bytes) and len(profile) <= _MOST_PROFILE_BYTES:
        # one that is damaged, or for another kind of colours than the pixels, is passed over as browsers do
        with suppress(ImageCms.PyCMSError, OSError, ValueError):
            described = ImageCms.ImageCmsProfile(io.BytesIO(profile))
            if described.profile.xcolor_space.strip() == {"L": "GRAY"}.get(source.mode, source.mode):
                srgb = ImageCms.createProfile("sRGB")
                converted = ImageCms.profileToProfile(source, described, srgb, outputMode="RGB")
                if converted is not None:
                    return converted
    return source.convert("RGB")
