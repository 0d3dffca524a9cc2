"""Uploaded pictures: files that are no pictures or too large are refused in one line."""

import base64
import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hfjax_app.errors import RequestRejected
from hfjax_app.images.uploads import from_data_url, read_file, read_picture
from hfjax_app.limits import PICTURE_MAX_BYTES


def encoded(kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (6, 4), (200, 30, 30)).save(file, kind, **options)
    return file.getvalue()


def bomb(width: int, height: int) -> bytes:
    """A PNG file of a few bytes whose header promises that many pixels."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_pictures_are_read(kind: str) -> None:
    assert read_picture(encoded(kind), "picture").size == (6, 4)


def test_grey_of_16_bits_keeps_its_shades() -> None:
    """Every shade above 255 of 65,535 became white: scans and depth maps were blank."""
    shades, file = np.arange(256, dtype=np.uint16).reshape(16, 16), io.BytesIO()
    Image.fromarray(shades * 257).save(file, "PNG")
    picture = read_picture(file.getvalue(), "picture")
    assert picture.mode == "L"
    np.testing.assert_array_equal(np.asarray(picture), shades)


def test_a_photograph_is_rotated_by_its_orientation() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: a quarter turn
    assert read_picture(encoded("JPEG", exif=exif), "picture").size == (4, 6)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "can't be read as a PNG, JPEG or WebP picture: it is none"),
        (b"hello", "it is none"),
        (encoded("GIF"), "it is none"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "it is none"),
        (encoded()[:45], "it is damaged"),
        (bomb(30, 30), "it is damaged"),
        (bomb(20_000, 20_000), "too many pixels: at most 40 million"),
        (bomb(12_000, 9_000), "too many pixels"),
        (bomb(8_000, 6_000), "too many pixels: at most 40 million"),
        (b"\x89PNG" + b"x" * PICTURE_MAX_BYTES, "10.0 MB: at most 10 MB"),
        (None, "must be a picture file, not NoneType"),
        ("/etc/passwd", "must be a picture file, not str"),
    ],
    ids=range(12),
)
def test_files_that_are_no_pictures_are_refused(data: object, message: str) -> None:
    with pytest.raises(RequestRejected, match=message) as caught:
        read_picture(data, "picture")
    assert "\n" not in str(caught.value)


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    large = tmp_path / "large.png"
    with large.open("wb") as file:
        file.truncate(PICTURE_MAX_BYTES + 1)
    with pytest.raises(RequestRejected, match="at most 10 MB"):
        read_file(large, "picture")
    with pytest.raises(RequestRejected, match="can't be read: No such file"):
        read_file(tmp_path / "missing.png", "picture")


def test_data_urls() -> None:
    text = base64.b64encode(encoded()).decode()
    assert from_data_url(f"data:image/png;base64,{text}", "image") == from_data_url(text, "image") == encoded()
    for wrong, message in (("data:image/png,%89PNG", "in base64"), (7, "not int"), ("A" * (16 << 20), "at most 10 MB")):
        with pytest.raises(RequestRejected, match=message):
            from_data_url(wrong, "image")
