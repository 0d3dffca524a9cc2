"""Uploaded pictures: files that are no pictures or too large are refused in one line."""

import base64
import io
import random
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms

from hfjax_app.errors import RequestRejected
from hfjax_app.images import ImageGenerator, ImageRequest
from hfjax_app.images.generation_parameters import read_png
from hfjax_app.images.start_picture import start_pixels
from hfjax_app.limits import PICTURE_MAX_BYTES
from hfjax_app.pictures import WHITE, as_seen, from_data_url, is_transparent, read_file, read_picture, size_of


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


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP", "AVIF"])
def test_pictures_are_read(kind: str) -> None:
    picture = read_picture(encoded(kind), "picture")
    assert picture.size == (6, 4)
    assert np.abs(np.asarray(picture.convert("RGB"), int) - (200, 30, 30)).max() < 12


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "TIFF", "AVIF", "PNG"])
def test_the_first_frame_of_several(kind: str) -> None:
    file = io.BytesIO()
    frames = [Image.new("RGB", (6, 4), colour) for colour in ("red", "lime", "blue")]
    frames[0].save(file, kind, save_all=True, append_images=frames[1:])
    red, green, blue = read_picture(file.getvalue(), "picture").convert("RGB").getpixel((3, 2))
    assert red > 240
    assert max(green, blue) < 15


@pytest.mark.parametrize(
    ("brightest", "values"), [(1.0, (0, 64, 255)), (255.0, (0, 64, 255)), (65_535.0, (0, 64, 255))]
)
def test_tiff_of_floating_point_numbers(brightest: float, values: tuple[int, ...]) -> None:
    file = io.BytesIO()
    numbers = np.array([[0, 0.252, 1, np.nan]], np.float32) * brightest
    Image.fromarray(numbers).save(file, "TIFF")
    assert np.asarray(read_picture(file.getvalue(), "picture"))[0, :3].tolist() == list(values)


@pytest.mark.parametrize("mode", ["CMYK", "I;16", "1", "RGBA", "LA", "LAB"])
def test_tiff_of_other_colours(mode: str) -> None:
    file = io.BytesIO()
    Image.new(mode, (6, 4)).save(file, "TIFF")
    assert as_seen(read_picture(file.getvalue(), "picture")).size == (6, 4)


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
    for kind in ("JPEG", "PNG", "WEBP", "TIFF", "AVIF"):
        assert read_picture(encoded(kind, exif=exif), "picture").size == (4, 6)


def exif_data(order: str, orientation: int, kind: int = 3) -> bytes:
    """EXIF data of a camera, with a tag of text that no decoder can read, and one that begins behind the end."""
    value = struct.pack(f"{order}HH" if kind == 3 else f"{order}I", *([orientation, 0] if kind == 3 else [orientation]))
    tags = [
        struct.pack(f"{order}HHI", 0x010F, 2, 10**6) + struct.pack(f"{order}I", 10**9),
        struct.pack(f"{order}HHI", 0x0112, kind, 1) + value,
        struct.pack(f"{order}HHI", 0x011A, 99, 7) + b"\xff" * 4,
        struct.pack(f"{order}HHI", 0x8769, 4, 1) + struct.pack(f"{order}I", 10**8),
    ]
    begin = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", 8)
    return b"Exif\0\0" + begin + struct.pack(f"{order}H", len(tags)) + b"".join(tags)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # Pillow's about the damage
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [3, 4])
def test_a_broken_tag_does_not_switch_the_turning_off(order: str, kind: int) -> None:
    """One that Pillow could not write again was the end of it: photographs lay on their side."""
    picture = Image.new("RGB", (32, 16), "blue")
    picture.paste("red", (0, 0, 16, 16))
    for orientation, corner in ((6, "top"), (8, "bottom"), (3, "right"), (1, "left")):
        file = io.BytesIO()
        picture.save(file, "JPEG", exif=exif_data(order, orientation, kind), quality=95)
        turned = read_picture(file.getvalue(), "picture")
        assert turned.size == ((16, 32) if orientation in (6, 8) else (32, 16))
        place = {"top": (8, 4), "bottom": (8, 28), "right": (28, 8), "left": (4, 8)}[corner]
        red, _, blue = turned.getpixel(place)
        assert red > 200 > blue


@pytest.mark.parametrize(("size", "read"), [((8_064, 6_048), (4_032, 3_024)), ((12_000, 9_000), (6_000, 4_500))])
def test_large_photographs_are_shrunk_while_they_are_decoded(size: tuple[int, int], read: tuple[int, int]) -> None:
    """48 and 108 million pixels, as phones take them."""
    file = io.BytesIO()
    Image.new("RGB", size, (200, 30, 30)).save(file, "JPEG")
    picture = read_picture(file.getvalue(), "picture")
    assert picture.size == read
    assert np.abs(np.asarray(picture.reduce(100), int) - (200, 30, 30)).max() <= 2
    file = io.BytesIO()
    Image.new("L", size).save(file, "JPEG", progressive=True)
    with pytest.raises(RequestRejected, match="too many pixels: at most 40 million"):
        read_picture(file.getvalue(), "picture")


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # Pillow's about the damage
def test_exif_that_can_not_be_read_is_no_reason_to_refuse() -> None:
    """Editors write it."""
    for damaged in (
        b"Exif\0\0II*\0\xff\xff\xff\xff",
        b"Exif\0\0nothing",
        b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\1" * 40,
    ):
        file = encoded("JPEG", exif=damaged)
        assert read_picture(file, "picture").size == (6, 4)
        with pytest.raises(RequestRejected, match="no settings inside"):
            read_png(file)


def seen(picture: Image.Image, kind: str = "PNG", background: str = WHITE, **options: object) -> np.ndarray:
    """The pixels that a request has of a file, 8 bits."""
    file = io.BytesIO()
    picture.save(file, kind, **options)
    pixels = start_pixels(read_picture(file.getvalue(), "picture"), (32, 32), background)
    return np.round(pixels * 255).astype(int)


def cut_out(mode: str) -> Image.Image:
    """Red in the middle, and transparent around it, over black."""
    picture = Image.new("RGBA", (32, 32), (0, 0, 0, 0))
    picture.paste((200, 30, 30, 255), (8, 8, 24, 24))
    return picture.convert(mode)


def test_a_background_can_be_chosen(generator: ImageGenerator) -> None:
    assert seen(cut_out("RGBA"), background="#1020ff")[2, 2].tolist() == [16, 32, 255]
    options: dict[str, Any] = {"image": cut_out("RGBA"), "steps": 2, "strength": 0.5, "seed": 1}
    white, blue = (
        list(generator.generate(ImageRequest("a dot", **options, **{"background": c})))[-1] for c in (WHITE, "#1020FF")
    )
    assert blue.notice == "what is transparent in the picture to start from was #1020ff"
    assert white.notice == "what is transparent in the picture to start from was white"
    assert blue.image != white.image
    _, parameters = read_png(blue.pictures[0].png)
    assert parameters.values["background"] == "#1020ff"
    [again] = list(generator.generate(parameters.request(options["image"])))[-1].pictures
    assert again.image == blue.image
    for wrong in ("blue", "#12345", "#1234567", "#12345g", 7, None):
        with pytest.raises(RequestRejected, match=r"background = .*: must be a colour such as #ffffff"):
            ImageRequest("a dot", **options | {"background": wrong})


@pytest.mark.parametrize("form", ["RGBA", "LA", "P", "key", "grey key", "WebP", "large"])
def test_what_is_transparent_is_white(form: str) -> None:
    """It was black: the colour that such files have there, and that no viewer shows."""
    red, options, kind = [200, 30, 30], {}, "PNG"
    picture = cut_out("LA" if form == "LA" else "RGBA")
    if form == "P":
        picture = picture.quantize()
    elif form in ("key", "grey key"):
        picture = picture.convert("RGB" if form == "key" else "L")
        options = {"transparency": (0, 0, 0) if form == "key" else 0}
    elif form == "WebP":
        kind, options = "WEBP", {"lossless": True}
    elif form == "large":  # pixels at the edge are averaged by their shares, without black
        picture = picture.resize((960, 960), Image.Resampling.NEAREST)
    pixels = seen(picture, kind, **options)
    assert pixels[2, 2].tolist() == [255, 255, 255]
    if form not in ("LA", "grey key"):
        assert np.abs(pixels[16, 16] - red).max() <= 1
        assert pixels[..., 0].min() >= 198
    assert is_transparent(cut_out("RGBA"))
    assert not is_transparent(Image.new("RGBA", (2, 2), "red"))


def test_colour_profiles_are_converted_to_srgb() -> None:
    """A photograph's wide colours were read as sRGB: duller than they are."""
    picture = Image.new("RGB", (32, 32), (200, 100, 60))
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    assert np.abs(seen(picture, icc_profile=srgb)[0, 0] - (200, 100, 60)).max() <= 1
    lab = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    for unusable in (lab, b"profile", b""):  # of other colours than the pixels, or damaged
        assert seen(picture, icc_profile=unusable)[0, 0].tolist() == [200, 100, 60]
    wide = seen(picture, icc_profile=swapped(srgb))[0, 0]
    assert wide[2] > wide[0], "this profile has red and blue in each other's places"
    alpha = cut_out("RGBA")
    assert seen(alpha, icc_profile=swapped(srgb))[2, 2].tolist() == [255, 255, 255]
    assert (middle := seen(alpha, icc_profile=swapped(srgb))[16, 16])[2] > middle[0]


def swapped(profile: bytes) -> bytes:
    """A profile of three colours whose red and blue are each other's."""
    return profile.replace(b"rXYZ", b"?XYZ").replace(b"bXYZ", b"rXYZ").replace(b"?XYZ", b"bXYZ")


def test_cmyk_and_16_bits_in_colour() -> None:
    picture = Image.new("CMYK", (32, 32), (0, 255, 255, 0))
    red = seen(picture, "JPEG", quality=95)[0, 0]
    assert red[0] > 200
    assert max(red[1:]) < 60


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "can't be read as a PNG, JPEG, WebP, GIF, TIFF, BMP or AVIF picture: it is none"),
        (b"hello", "it is none"),
        (encoded("GIF")[:9], "it is damaged"),
        (encoded("TIFF")[:9], "it is damaged"),
        (b"8BPS", "it is Photoshop's format; save it as PNG"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "it is SVG; save it as PNG"),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "it is HEIC, as phones save photographs; save or send it as JPEG"),
        (b"\0\0\0\x18ftypmif1\0\0\0\0", "it is HEIC"),
        (b"\0\0\0\x1cftypavif\0\0\0\0", "it is damaged"),
        (encoded()[:45], "it is damaged"),
        (bomb(30, 30), "it is damaged"),
        (bomb(20_000, 20_000), "too many pixels: at most 40 million"),
        (bomb(12_000, 9_000), "too many pixels"),
        (bomb(8_000, 6_000), "too many pixels: at most 40 million"),
        (b"\x89PNG" + b"x" * PICTURE_MAX_BYTES, "10.0 MB: at most 10 MB"),
        (None, "must be a picture file, not NoneType"),
        ("/etc/passwd", "must be a picture file, not str"),
    ],
    ids=range(17),
)
def test_files_that_are_no_pictures_are_refused(data: object, message: str) -> None:
    with pytest.raises(RequestRejected, match=message) as caught:
        read_picture(data, "picture")
    assert "\n" not in str(caught.value)


def whole_files(kind: str) -> list[bytes]:
    """With what a format has: a profile, EXIF, transparency, a palette, several frames, compressed or not."""
    frames = [Image.fromarray(np.random.default_rng(seed).integers(0, 256, (24, 32, 4), np.uint8)) for seed in (1, 2)]
    exif, profile = Image.Exif(), ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    exif[0x0112] = 6
    kept = {} if kind in ("GIF", "BMP") else {"exif": exif, "icc_profile": profile}
    several = {} if kind in ("JPEG", "BMP") else {"save_all": True, "append_images": frames[1:]}
    modes = {"JPEG": ("RGB", "CMYK", "L"), "BMP": ("RGB", "P", "1"), "GIF": ("P",), "TIFF": ("RGBA", "CMYK", "F")}
    pictures = [frames[0].convert("RGB").convert(mode) for mode in modes.get(kind, ("RGBA", "RGB"))]
    options = [kept, several, *([{"compression": "tiff_lzw"}] if kind == "TIFF" else [])]
    files = []
    for picture in pictures:
        for chosen in options:
            file = io.BytesIO()
            picture.save(file, kind, **({} if several is chosen and picture.mode != frames[1].mode else chosen))
            files.append(file.getvalue())
    return files


def damaged(file: bytes, rng: random.Random) -> bytes:
    """With bytes changed, doubled, moved or cut off."""
    data = bytearray(file)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                data[at : at + 4] = rng.choice([b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"\0\0\0\x01"])
            case 2:
                data[at:at] = data[at : at + rng.randrange(1, 60)]
            case 3:
                del data[max(1, at) :][: rng.randrange(1, 60)]
                data = data[: max(1, at)] if rng.randrange(8) == 0 else data
    return bytes(data)


@pytest.mark.parametrize("count", [12, pytest.param(600, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP", "AVIF"])
def test_damaged_files_are_read_or_refused(kind: str, count: int) -> None:
    """By both readers, of the header and of the whole, and by what makes colours of the pixels."""
    rng = random.Random(kind)
    for file in whole_files(kind):
        assert as_seen(read_picture(file, "picture")).size == size_of(file, "picture")
        for _ in range(count):
            wrong = damaged(file, rng)
            for read in (size_of, lambda data, what: as_seen(read_picture(data, what))):
                with suppress(RequestRejected):
                    read(wrong, "picture")


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
