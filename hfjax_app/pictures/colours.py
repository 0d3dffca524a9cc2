"""A picture's pixels as they are seen: sRGB colours, with what is transparent on a background.

Does not read files: `uploads.py` does.
"""

import io
import re
from contextlib import suppress

from PIL import Image, ImageCms

from hfjax_app.errors import RequestRejected
from hfjax_app.validation import quoted

WHITE = "#ffffff"  # the background that web pages and web UIs have
_MOST_PROFILE_BYTES = 4 << 20  # profiles of printers have a megabyte or two


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
