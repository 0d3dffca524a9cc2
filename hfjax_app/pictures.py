"""Pictures from outside: untrusted bytes become a PIL picture or are refused, at a bounded cost, and pixels become
colours as they are seen, in sRGB with what is transparent on a background."""

import base64
import io
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image, ImageCms
from PIL.JpegImagePlugin import JpegImageFile

from hfjax_app.errors import RequestRejected
from hfjax_app.limits import PICTURE_MAX_BYTES, PICTURE_MAX_PIXELS, PICTURE_MAX_SHRUNK_PIXELS, PICTURE_MAX_SIDE
from hfjax_app.validation import quoted

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP", "AVIF")
_NAMED = "PNG, JPEG, WebP, GIF, TIFF, BMP or AVIF"
_JPEG = b"\xff\xd8\xff"
_FIRST = (b"\x89PNG", b"RIFF", _JPEG[:2], b"GIF8", b"BM", b"II*\0", b"MM\0*")  # bytes of these formats
_COUNTED = ("PNG", "WEBP")  # formats whose header says how many frames there are
# The first bytes of other formats.
_OTHER_FORMATS = {
    b"%PDF": "PDF",
    b"<svg": "SVG",
    b"<?xml": "SVG",
    b"8BPS": "Photoshop's format",
    b"\xff\x0a": "JPEG XL",
    b"\0\0\0\x0cJXL ": "JPEG XL",
}
_AVIF = (b"avif", b"avis")  # the brands behind `ftyp`; the others are HEIC
_ORIENTATION = 0x0112  # in EXIF data: how the camera was held
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_LYING = (5, 6, 7, 8)  # orientations whose width is the height of what is seen
WHITE = "#ffffff"  # the background that web pages and web UIs have
_MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "CMYK")
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
    """The decoded picture, turned by its EXIF orientation; the first frame of an animation.

    The size is read from the header before decoding, so that a decompression bomb costs nothing. A photograph of up to
    PICTURE_MAX_SHRUNK_PIXELS is shrunk while it is decoded. info["frames"] says how many frames a PNG or WebP file has.

    Args:
        data: the file's bytes, untrusted.
        what: the picture's name in messages, such as "mask".

    Raises:
        RequestRejected: not a file of FORMATS, damaged, or too large.
    """

    def decoded(picture: Image.Image) -> Image.Image:
        picture.load()
        turned = _turned(picture)
        frames = getattr(picture, "n_frames", 1) if picture.format in _COUNTED else 1
        turned.info = picture.info | {"frames": frames}
        return _in_known_mode(turned)

    return _read(data, what, decoded)


def size_of(data: object, what: str) -> tuple[int, int]:
    """Width and height of a picture as it is seen, read from the file's header: nothing is decoded.

    Raises:
        RequestRejected: as `read_picture`, where the header tells it.
    """

    def turned(picture: Image.Image) -> tuple[int, int]:
        lies = picture.format != "TIFF" and _orientation(picture) in _LYING  # Pillow turns TIFF files itself
        return (picture.height, picture.width) if lies else picture.size

    return _read(data, what, turned)


def _read(data: object, what: str, result: Callable[[Image.Image], T]) -> T:
    """The result of an opened picture, whose size was checked before anything is decoded."""
    if not isinstance(data, bytes):
        raise RequestRejected(f"{what}: must be a picture file, not {type(data).__name__}")
    if len(data) > PICTURE_MAX_BYTES:
        raise RequestRejected(f"{what} of {len(data) / (1 << 20):.1f} MB: at most {PICTURE_MAX_BYTES >> 20} MB")
    try:
        picture = _opened(data)
        if max(picture.size) > PICTURE_MAX_SIDE:
            raise RequestRejected(
                f"{what} of {picture.width} x {picture.height} pixels: at most {PICTURE_MAX_SIDE} a side"
            )
        if _shrunk(picture):
            return result(picture)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):  # Pillow's own limit is higher
        pass
    except RequestRejected:
        raise
    except Exception as error:  # Pillow's decoders raise many kinds of errors on damaged files
        raise RequestRejected(f"{what} can't be read as a {_NAMED} picture: {_reason(data)}") from error
    raise RequestRejected(f"{what} has too many pixels: at most {PICTURE_MAX_PIXELS // 10**6} million")


def _opened(data: bytes) -> Image.Image:
    """The picture, its header read. Pillow's own opening refuses a JPEG file of 180 million pixels."""
    if data.startswith(_JPEG):
        return JpegImageFile(io.BytesIO(data))
    return Image.open(io.BytesIO(data), formats=FORMATS)


def _shrunk(picture: Image.Image) -> bool:
    """Whether its pixels are few enough; those of a large photograph are, by decoding every second, fourth or eighth.

    A progressive one is decoded from a copy of all its coefficients, which takes as much memory as all pixels.
    """
    width, height = picture.size
    if isinstance(picture, JpegImageFile) and "progressive" not in picture.info:
        for part in (2, 4, 8):
            if picture.width * picture.height > PICTURE_MAX_PIXELS and width * height <= PICTURE_MAX_SHRUNK_PIXELS:
                picture.draft(None, (width // part, height // part))
    return picture.width * picture.height <= PICTURE_MAX_PIXELS


def _turned(picture: Image.Image) -> Image.Image:
    turn = _TURNS.get(_orientation(picture))
    return picture.copy() if turn is None else picture.transpose(turn)


def _orientation(picture: Image.Image) -> int:
    """How the camera was held, whatever else the EXIF data says: cameras write what Pillow can't read."""
    orientation: object = None
    with suppress(Exception):  # Pillow's reader of EXIF raises many kinds of errors
        orientation = picture.getexif().get(_ORIENTATION)
    return orientation if isinstance(orientation, int) else _orientation_in(picture.info.get("exif"))


def _orientation_in(exif: object) -> int:
    """The orientation in EXIF data that may be damaged behind it; 1, as it is, where there is none."""
    data = exif.removeprefix(b"Exif\0\0") if isinstance(exif, bytes) else b""
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    with suppress(struct.error):
        if order is not None:
            [begin] = struct.unpack_from(f"{order}I", data, 4)
            [count] = struct.unpack_from(f"{order}H", data, begin)
            for at in range(begin + 2, min(begin + 2 + 12 * count, len(data)), 12):
                tag, kind = struct.unpack_from(f"{order}HH", data, at)
                if tag == _ORIENTATION:
                    [value] = struct.unpack_from(f"{order}{'H' if kind == 3 else 'I'}", data, at + 8)
                    return int(value)
    return 1


def _reason(data: bytes) -> str:
    """Why Pillow can't read a file."""
    if data.startswith(_FIRST) or (data[4:8] == b"ftyp" and data[8:12] in _AVIF):
        return "it is damaged"
    if data[4:8] == b"ftyp":
        return "it is HEIC, as phones save photographs; save or send it as JPEG"
    known = next((name for mark, name in _OTHER_FORMATS.items() if data.lstrip().startswith(mark)), None)
    return "it is none" if known is None else f"it is {known}; save it as PNG"


def _in_known_mode(picture: Image.Image) -> Image.Image:
    """A picture of 8 bits a colour.

    16-bit grey by its high bytes, as Pillow reads 16-bit colours; Pillow would clip grey to white. Floating-point grey,
    which only TIFF files have, goes up to 1, 255 or 65,535.
    """
    if picture.mode in _MODES:
        return picture
    if picture.mode.startswith("I"):
        values = np.asarray(picture) >> 8
    elif picture.mode == "F":
        values = np.nan_to_num(np.asarray(picture))
        brightest = values.max(initial=0)
        values = values * (255 if brightest <= 1 else 1 if brightest <= 255 else 1 / 257)
    else:
        return picture.convert("RGB")
    grey = Image.fromarray(values.clip(0, 255).astype(np.uint8))
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
