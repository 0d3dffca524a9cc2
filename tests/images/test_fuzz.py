"""What readers of files and prompts do with rubbish: they read it or refuse it in one line, and nothing grows large."""

import io
import json
import random
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from safetensors.torch import save_file

from hfjax_app.errors import HfjaxError, ModelUnavailable, RequestRejected
from hfjax_app.images.generation_parameters import fitted, read_png
from hfjax_app.images.interface import ImageFacts, Latents, Recommended, Sizes
from hfjax_app.images.lora import Lora, read_loras
from hfjax_app.images.prompt_weights import HIGHEST, fragments, left_out, plain, unweighted
from hfjax_app.images.request import CompletedRequest, ImageRequest
from hfjax_app.images.single_file import CONFIGS, SingleFile
from hfjax_app.images.start_picture import placement, result_size
from hfjax_app.limits import IMAGE_MAX_CHARACTERS, IMAGE_MAX_SIDE, IMAGE_RESULT_PIXELS, PICTURE_MAX_PIXELS
from hfjax_app.pictures import as_seen, read_picture

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning:PIL")]  # Pillow's about damage
MARKS = (
    *("(", ")", "[", "]", ":", "\\", "1.3", ":1.2)", ":9999.99999)", "BREAK", " BREAK ", "<lora:", ">", "{", "}", "|"),
    *("__", "AND", "embedding:", "word", " ", "\n", ",", "é", "日本", "++", ")1.2", "-", "<lora:a:0.5>", "[a:b:0.5]"),
)
FACTS = ImageFacts(
    name=None,
    revision=None,
    versions={},
    recommended=Recommended(),
    sizes=Sizes(own=(64, 64), patch=8),
    latents=Latents(shape=(1, 4, 1, 1), height=2, width=3, scale=8),
    schedulers=("DDIM", "Euler"),
    most={"steps": 100, "clip_skip": 0},
    takes_negative_prompt=True,
    takes_weights=True,
)


@contextmanager
def refused_in_a_line(kind: type[HfjaxError] = RequestRejected) -> Iterator[None]:
    """What is refused is refused so; all else is a failure."""
    said = ""
    try:
        yield
    except kind as error:
        said = str(error)
    assert "\n" not in said
    assert len(said) < 2_000


def text(draw: random.Random, most: int) -> str:
    marks = draw.sample(MARKS, draw.randint(1, len(MARKS)))
    written = ""
    while len(written) < most and draw.random() > 0.001:
        written += draw.choice(marks) * draw.choice((1, 1, 1, 1, 50))
    return written[:most]


@pytest.mark.parametrize("seed", range(4))
def test_prompts(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(100):
        prompt = text(draw, draw.choice((20, 300, IMAGE_MAX_CHARACTERS)))
        with refused_in_a_line():
            request = ImageRequest(prompt, negative_prompt=prompt[::-1])
            found = fragments(request.prompt)
            assert "".join(each.text for each in found) == plain(prompt)
            assert all(0 <= each.weight <= HIGHEST for each in found)
            assert len(unweighted(prompt)) <= len(prompt)
            for takes in (True, False):
                assert all(len(line) < 1_000 and "\n" not in line for line in left_out(prompt, takes_weights=takes))


@pytest.mark.parametrize("seed", range(2))
def test_settings_in_files(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(60):
        prompt, info, file = text(draw, 3_000), PngInfo(), io.BytesIO()
        values = {
            name: draw.choice([prompt, 7, -1.5, None, [], "9" * 99, True]) for name in ("prompt", "Steps", "Seed")
        }
        written = draw.choice(
            [
                f"{prompt}\nNegative prompt: {prompt[:99]}\nSteps: {draw.randint(-9, 999)}, Sampler: {prompt[:9]}, "
                f"Seed: 1, CFG scale: {draw.choice(['nan', '7', 'x'])}, Size: {draw.choice(['64x64', 'x', '9x' * 50])}",
                json.dumps(values),
                json.dumps({"1": {"class_type": prompt[:20], "inputs": values | {"steps": 3, "positive": ["1", 0]}}}),
                prompt,
            ]
        )
        info.add_itxt(draw.choice(["parameters", "prompt", "Comment", "hfjax"]), written)
        Image.new("RGB", (8, 8)).save(file, "PNG", pnginfo=info)
        with refused_in_a_line():
            parameters = fitted(read_png(file.getvalue())[1], FACTS)
            assert all("\n" not in line for line in parameters.left_out)
            parameters.request()


def picture_files() -> Iterator[tuple[str, bytes]]:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8))
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "a camera"
    for kind, mode, options in (
        *[("PNG", "RGB", {}), ("PNG", "RGBA", {}), ("PNG", "P", {}), ("JPEG", "RGB", {"exif": exif.tobytes()})],
        *[("JPEG", "CMYK", {"progressive": True}), ("WEBP", "RGBA", {}), ("GIF", "P", {}), ("BMP", "RGB", {})],
        *[("TIFF", mode, {}) for mode in ("RGB", "L", "CMYK", "1")],
        *[("TIFF", "RGB", {"compression": name}) for name in ("tiff_lzw", "tiff_deflate", "jpeg", "packbits")],
        *[("AVIF", "RGB", {})],
    ):
        file = io.BytesIO()
        frames = {"save_all": True, "append_images": [noise.rotate(90).convert(mode)]}
        several = kind in ("GIF", "TIFF", "AVIF") and "compression" not in options
        noise.convert(mode).save(file, kind, **options, **(frames if several else {}))
        yield f"{kind} {mode}", file.getvalue()


@pytest.mark.parametrize("content", [pytest.param(content, id=name) for name, content in picture_files()])
def test_damaged_pictures(content: bytes) -> None:
    """A whole one is read; of damaged ones none takes more than its decoded pixels."""
    assert read_picture(content, "picture").width in (24, 32)
    draw = random.Random(len(content))
    for _ in range(150):
        damaged = bytearray(content[: draw.choice((len(content), len(content), draw.randrange(len(content))))])
        for _ in range(draw.choice((0, 1, 3, 30)) if damaged else 0):
            # headers are at the beginning, and name sizes
            at = draw.randrange(min(len(damaged), draw.choice((60, 60, len(damaged)))))
            damaged[at] = draw.choice((0, 1, 127, 128, 255, draw.randrange(256)))
        with refused_in_a_line():
            picture = read_picture(bytes(damaged), "picture")
            assert picture.width * picture.height <= PICTURE_MAX_PIXELS
            if picture.width * picture.height < 10**6:
                as_seen(picture)


def test_places() -> None:
    """Any mask, canvas and box: the result has the size that was foretold, and what is far away is the same."""
    draw = random.Random(7)
    tracemalloc.start()
    for _ in range(150):
        size = (8 * draw.randint(4, 12), 8 * draw.randint(4, 12))
        wide, tall = (draw.choice((1, 7, 64, 300, 5_000)) for _ in range(2))
        picture = Image.new(draw.choice(("RGB", "RGBA", "L", "P")), (wide, tall))
        mask: Image.Image | None = Image.new("L", (wide, tall))
        corner = (draw.randrange(wide), draw.randrange(tall))
        mask.paste(255, (*corner, *(draw.randint(at + 1, side) for at, side in zip(corner, (wide, tall), strict=True))))
        options: dict[str, Any] = {"region": draw.choice(("whole", "marked")), "softness": draw.choice((0, 0.5, 8))}
        if draw.random() < 0.5:
            options["expand"] = ",".join(str(draw.choice((0, 0, 9, 700, IMAGE_MAX_SIDE))) for _ in range(4))
        if draw.random() < 0.3:
            numbers = [draw.choice((-(10**6), -5, 0, 3, 900)) for _ in range(2)]
            options["box"] = (*numbers, *(draw.choice((1, 50, 10**6)) for _ in range(2)))
            mask = Image.new("L", size, draw.choice((0, 255)))
        with refused_in_a_line():
            request = CompletedRequest(
                "a", steps=2, guidance_scale=1, seed=1, scheduler="DDIM", width=size[0], height=size[1],
                image=picture, mask=mask, **options,
            )  # fmt: skip
            place = placement(request, 8)
            assert place is not None
            assert place.pixels.shape == (size[1], size[0], 3)
            made = place.put_back(Image.new("RGB", size, "red"))
            assert made.size == place.canvas.size == result_size(request)
            assert made.width * made.height <= 1.1 * IMAGE_RESULT_PIXELS
            assert max(place.preview(Image.new("RGB", size)).size) <= max(size)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 << 30


def test_files_of_weights(tmp_path: Path, make_pipeline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Single files and LoRAs: damaged ones, and names and metadata that no program writes."""
    for kind in CONFIGS:
        monkeypatch.setitem(CONFIGS, kind, str(tmp_path))
    draw, pipeline = random.Random(3), make_pipeline()
    names = ("model.diffusion_model.a", "v_pred", "ztsnr", "lora_unet_x.lora_down.weight", "unet.x.lora_A.weight", "x")
    for number in range(60):
        tensors = {f"{draw.choice(names)}{draw.choice(('', 'y'))}": torch.zeros(draw.randint(0, 3)) for _ in range(4)}
        metadata = {"modelspec.prediction_type": draw.choice(("v", "", "x" * 999)), "ss_v_parameterization": "True"}
        file = tmp_path / f"{number}.safetensors"
        save_file(tensors, file, metadata)
        if draw.random() < 0.6:
            content = bytearray(file.read_bytes())
            for _ in range(draw.choice((1, 5))):
                content[draw.randrange(len(content))] = draw.choice((0, 34, 123, 255, draw.randrange(256)))
            file.write_bytes(content[: draw.randint(0, len(content))])
        with refused_in_a_line(ModelUnavailable):
            SingleFile(file)
        with refused_in_a_line(ModelUnavailable):
            read_loras(pipeline, [Lora(source=str(file))])
