"""Generation parameters inside PNG files: there and back, the web UI's text, forgeries, and replays."""

import base64
import io
import json
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo

from hfjax_app.errors import RequestRejected
from hfjax_app.images import Comparison, ImageGenerator, ImageRequest, replay
from hfjax_app.images.generation_parameters import GenerationParameters, read_png, to_png
from hfjax_app.images.request import OPTIONS
from hfjax_app.images.start_picture import digest, from_text, to_text
from hfjax_app.limits import FOREIGN_PARAMETERS_MAX_CHARACTERS, IMAGE_MAX_SIDE

PARAMETERS = GenerationParameters(
    values=dict.fromkeys(OPTIONS)
    | {
        "prompt": "a red dot, twice\non two lines",
        "negative_prompt": "blue: ∅",
        "steps": 4,
        "guidance_scale": 2.5,
        "seed": 2**64 - 1,
        "width": 32,
        "height": 32,
        "scheduler": "Euler ancestral",
        "strength": 0.75,
    },
    image="ab" * 32,
    model='a, "model"',
    revision="0123456789ab",
    versions={"hfjax_app": "0.1.0", "jax": "0.10.2"},
)
KEPT = f"16x16:{base64.b64encode(bytes([0, 255] * 16)).decode()}"  # of 32 x 32 pixels; the right half is drawn
WEB_UI = """a cat
Negative prompt: dog
Steps: 20, Sampler: Euler a, CFG scale: 7, Seed: 5, Size: 64x32, Model hash: abc, Model: "x, y", Clip skip: 2"""


def picture() -> Image.Image:
    drawn = Image.new("RGB", (32, 32), (40, 120, 200))
    ImageDraw.Draw(drawn).ellipse((6, 6, 24, 20), fill=(230, 80, 30))
    return drawn


def png(**chunks: str) -> bytes:
    info, file = PngInfo(), io.BytesIO()
    for name, text in chunks.items():
        info.add_itxt(name, text)
    picture().save(file, "PNG", pnginfo=info)
    return file.getvalue()


def test_there_and_back() -> None:
    image, parameters = read_png(to_png(picture(), PARAMETERS))
    assert parameters == PARAMETERS
    assert image.tobytes() == picture().tobytes()


def test_other_programs_can_read_the_text() -> None:
    text = Image.open(io.BytesIO(to_png(picture(), PARAMETERS))).info["parameters"]
    assert text == (
        "a red dot, twice\non two lines\nNegative prompt: blue: ∅\nSteps: 4, Sampler: Euler a, CFG scale: 2.5, "
        'Seed: 18446744073709551615, Size: 32x32, Model hash: 0123456789ab, Model: "a, \\"model\\"", '
        "Denoising strength: 0.75, Version: hfjax_app 0.1.0"
    )
    _, again = read_png(png(parameters=text))
    assert {**PARAMETERS.values, **again.values} == PARAMETERS.values
    assert again == replace(PARAMETERS, values=again.values, image=None, versions=None)
    assert again.left_out == ()


@pytest.mark.parametrize(
    ("prompt", "negative"),
    [
        ('a form that asks for "Negative prompt: none", blue ink', "blurry"),
        ("a form:\nNegative prompt: none\n  Negative prompt: two", "blurry\nNegative prompt: three"),
        ("Steps: 1, Seed: 2, Size: 3x3", ""),
    ],
)
def test_prompts_survive_the_text(prompt: str, negative: str) -> None:
    """A prompt with the words "Negative prompt:" was cut there."""
    parameters = with_values(PARAMETERS, prompt=prompt, negative_prompt=negative)
    _, again = read_png(png(parameters=parameters.text()))
    assert (again.values["prompt"], again.values["negative_prompt"]) == (prompt, negative)


def test_the_web_uis_own_text_is_read() -> None:
    _, parameters = read_png(png(parameters=WEB_UI))
    assert parameters.values == {
        "prompt": "a cat",
        "negative_prompt": "dog",
        "steps": 20,
        "guidance_scale": 7.0,
        "seed": 5,
        "width": 64,
        "height": 32,
        "scheduler": "Euler ancestral",
        "clip_skip": 1,
    }
    assert parameters.left_out == ()


@pytest.mark.parametrize("piece", ["a", " ", 'a:"', "a,", "a:", 'a:"\\",', "a: ", "a/ "], ids=repr)
def test_reading_takes_no_longer_than_the_text_is(piece: str) -> None:
    """20,000 letters took three seconds and blocked all requests: each letter began a search to the end. These, which
    take less than a second, would take minutes so."""
    text = (piece * FOREIGN_PARAMETERS_MAX_CHARACTERS)[:FOREIGN_PARAMETERS_MAX_CHARACTERS]
    started = time.thread_time()
    with pytest.raises(RequestRejected, match="can't be read"):
        read_png(png(parameters=text))
    assert time.thread_time() - started < 30


def with_values(parameters: GenerationParameters, **values: Any) -> GenerationParameters:
    return replace(parameters, values={**parameters.values, **values})


def stored(parameters: GenerationParameters) -> dict[str, Any]:
    """What the file holds as JSON."""
    return json.loads(Image.open(io.BytesIO(to_png(picture(), parameters))).info["hfjax"])


def changed(**values: Any) -> str:
    return json.dumps(stored(PARAMETERS) | values)


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ({}, "no settings inside"),
        ({"comment": "hello"}, "no settings inside"),
        ({"hfjax": "{"}, "damaged: they are no JSON"),
        ({"hfjax": "[" * 5000}, "damaged: they are no JSON"),
        ({"hfjax": "[1]"}, "no JSON object"),
        ({"hfjax": '{"prompt": "x"}'}, "is missing or unknown"),
        ({"hfjax": changed(surprise=1)}, "'surprise' is missing or unknown"),
        ({"hfjax": changed(steps="20")}, "forged or damaged: steps = '20'"),
        ({"hfjax": changed(seed=True)}, "forged or damaged: seed = 'True'"),
        ({"hfjax": changed(prompt=None)}, "forged or damaged: prompt"),
        ({"hfjax": changed(versions={"jax": 1})}, "versions must be text"),
        ({"hfjax": changed(model="two\nlines")}, r"forged or damaged: model = 'two\\nlines'"),
        ({"hfjax": changed(revision="half \ud800")}, r"forged or damaged: revision = 'half \\ud800'"),
        ({"hfjax": changed(scheduler="x" * 10_000)}, "forged or damaged: scheduler = 'xxx"),
        ({"hfjax": changed(versions={"jax": "\x1b[2J"})}, r"forged or damaged: versions = '\\x1b"),
        ({"hfjax": changed(mask="AB" * 32)}, "forged or damaged: mask = 'ABAB"),
        ({"hfjax": changed(mask="")}, "forged or damaged: mask = ''"),
        ({"hfjax": changed(mask="16x16:" + "?" * 44)}, "forged or damaged: mask = '16x16:??"),
        ({"hfjax": changed(mask=KEPT[:-1])}, "forged or damaged: mask"),
        ({"hfjax": changed(mask=KEPT + "AAAA")}, "forged or damaged: mask"),
        ({"hfjax": changed(mask=KEPT.replace("16x16", "16x17"))}, "forged or damaged: mask"),
        ({"hfjax": changed(mask=KEPT.replace("16x16", "0x0"))}, "forged or damaged: mask"),
        ({"hfjax": changed(mask=KEPT.replace("16x16", "9999x9999"))}, "forged or damaged: mask"),
        ({"hfjax": changed(mask=KEPT.replace("16x16", "016x16"))}, "forged or damaged: mask"),
        ({"hfjax": changed(mask="3x1:/w==")}, "forged or damaged: mask"),
        ({"hfjax": changed(mask=[[True]])}, r"forged or damaged: mask = '\[\[True\]\]'"),
        ({"hfjax": changed(model="x" * 160_000)}, "forged or damaged: they are 160,... characters long"),
        ({"hfjax": "x" * 900_000}, "no settings inside"),
        ({"parameters": "a cat"}, "can't be read: their last line must hold Steps"),
        ({"parameters": "a cat\nSteps: 1, Seed: 1"}, "can't be read"),
        ({"prompt": "[" * 5000}, "no settings inside"),
        ({"prompt": json.dumps({"1": {"class_type": "SaveImage", "inputs": {}}})}, "no settings inside"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_forged_and_damaged_parameters_are_refused(chunks: dict[str, str], message: str) -> None:
    with pytest.raises(RequestRejected, match=message) as caught:
        read_png(png(**chunks))
    assert "\n" not in str(caught.value)


# --- replay


@pytest.fixture(scope="module")
def made(generator: ImageGenerator) -> bytes:
    *_, step = generator.generate(ImageRequest("red dot", steps=3, seed=9, images=3, scheduler="Euler ancestral"))
    return step.pictures[2].png


def comparison(*args: Any, **options: Any) -> Comparison:
    *_, found = replay(*args, **options)
    return found


def test_a_replay_is_identical(generator: ImageGenerator, made: bytes, compilations: Callable) -> None:
    """The third picture of a batch, alone."""
    with compilations() as seen:
        found = comparison(generator, made)
    assert seen == []
    assert found.is_identical
    assert found.parameters.values["seed"] == 11
    assert found.summary == "Identical: all 1,024 pixels are the same."
    assert found.image.tobytes() == Image.open(io.BytesIO(made)).convert("RGB").tobytes()


def test_a_variation_is_drawn_again(generator: ImageGenerator) -> None:
    """Other programs read the seed that it is near, and A1111's names of the other two values."""
    *_, step = generator.generate(ImageRequest("red dot", steps=2, seed=7, images=2, variation_of=3, variation=0.5))
    file = step.pictures[1].png
    found = comparison(generator, file)
    assert found.is_identical
    assert [found.parameters.values[name] for name in ("seed", "variation_of", "variation")] == [8, 3, 0.5]
    text = Image.open(io.BytesIO(file)).info["parameters"]
    assert "Seed: 3, Variation seed: 8, Variation seed strength: 0.5" in text


def test_a_picture_with_clip_skip_is_drawn_again(generator: ImageGenerator) -> None:
    *_, step = generator.generate(ImageRequest("red dot", steps=2, seed=7, clip_skip=1))
    file = step.pictures[0].png
    assert comparison(generator, file).is_identical
    text = Image.open(io.BytesIO(file)).info["parameters"]
    assert "Clip skip: 2," in text, "web UIs count from 1"
    assert read_png(png(parameters=text))[1].request().clip_skip == 1


def test_a_changed_pixel_is_found(generator: ImageGenerator, made: bytes) -> None:
    image, parameters = read_png(made)
    red, green, blue = image.getpixel((5, 6))
    image.putpixel((5, 6), (red, green, (blue + 7) % 256))
    found = comparison(generator, to_png(image, parameters))
    assert (found.is_identical, found.differing) == (False, 1)
    assert "1 pixels differ" in found.summary
    assert "The file was changed" in found.summary


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ("transparent", "it has the colours RGBA, not RGB"),
        ("palette", "it has the colours P, not RGB"),
        ("one colour transparent", "it has transparency"),
        ("colour profile", "it has icc profile"),
        ("gamma", "it has gamma"),
        ("other primary colours", "it has chromaticity"),
        ("animated", "it has 2 frames"),
    ],
)
def test_a_file_that_is_shown_differently_is_not_identical(
    generator: ImageGenerator, made: bytes, form: str, says: str
) -> None:
    """Only the colours were compared: a file whose pixels were all transparent was "identical"."""
    image, parameters = read_png(made)
    info, file, options = PngInfo(), io.BytesIO(), {}
    info.add_itxt("hfjax", json.dumps(stored(parameters)))
    if form == "transparent":
        image.putalpha(0)
    elif form == "palette":
        image = image.quantize()
    elif form == "one colour transparent":
        options = {"transparency": image.getpixel((0, 0))}
    elif form == "colour profile":
        options = {"icc_profile": b"profile"}
    elif form == "gamma":
        info.add(b"gAMA", struct.pack(">I", 100_000))
    elif form == "other primary colours":
        info.add(b"cHRM", struct.pack(">8I", *[30_000] * 8))
    else:
        options = {"save_all": True, "append_images": [picture()]}
    image.save(file, "PNG", pnginfo=info, **options)
    found = comparison(generator, file.getvalue())
    assert not found.is_identical
    assert says in found.summary
    assert found.summary.startswith("Not identical: the file was changed")


def test_other_versions_are_named(generator: ImageGenerator, made: bytes) -> None:
    image, parameters = read_png(made)
    older = replace(parameters, versions={**parameters.versions, "jax": "0.1"})
    older = with_values(older, seed=parameters.values["seed"] + 1)
    found = comparison(generator, to_png(image, older))
    assert f"Since then: jax 0.1, now {parameters.versions['jax']}." in found.summary


def test_a_picture_made_from_another_needs_that_one(generator: ImageGenerator) -> None:
    [step] = generator.generate(ImageRequest("red dot", steps=2, seed=1, image=picture(), strength=0.5))
    file = step.pictures[0].png
    with pytest.raises(RequestRejected, match="needed to draw it again: upload it"):
        replay(generator, file)
    with pytest.raises(RequestRejected, match="the uploaded one is another"):
        replay(generator, file, image=Image.new("RGB", (32, 32)))
    assert comparison(generator, file, image=picture()).is_identical
    assert comparison(generator, file, image=picture(), mask=painted()).is_identical, "there was no mask"


def painted() -> Image.Image:
    """A mask over one corner, not aligned with latents, of another size than the picture."""
    mask = Image.new("L", (64, 64))
    ImageDraw.Draw(mask).polygon([(21, 5), (63, 11), (50, 63)], fill=255)
    return mask


@pytest.fixture(scope="module")
def inpainted(generator: ImageGenerator) -> bytes:
    *_, step = generator.generate(
        ImageRequest("red dot", steps=4, seed=1, image=picture(), mask=painted(), strength=1.0)
    )
    return step.pictures[0].png


def test_an_inpainted_picture_needs_no_mask(generator: ImageGenerator, inpainted: bytes) -> None:
    """Its file held only a hash of the mask, and a user can't paint the same mask twice: pictures with painted masks
    could not be verified."""
    with pytest.raises(RequestRejected, match="drawn from a picture that is needed to draw it again: upload it"):
        replay(generator, inpainted)
    assert comparison(generator, inpainted, image=picture()).is_identical
    assert comparison(generator, inpainted, image=picture(), mask=painted()).is_identical
    with pytest.raises(RequestRejected, match=r"drawn from a mask .* the uploaded one is another"):
        replay(generator, inpainted, image=picture(), mask=Image.new("L", (32, 32), 255))
    *_, whole = generator.generate(ImageRequest("red dot", steps=4, seed=1, image=picture(), strength=1.0))
    assert whole.image.tobytes() != Image.open(io.BytesIO(inpainted)).tobytes(), "the mask must matter"


def test_a_replayed_mask_is_kept_again(generator: ImageGenerator, inpainted: bytes) -> None:
    *_, step, _ = replay(generator, inpainted, image=picture())
    assert step.pictures[0].parameters == read_png(inpainted)[1]


def test_files_that_hold_a_hash_of_the_mask_need_the_mask(generator: ImageGenerator, inpainted: bytes) -> None:
    image, parameters = read_png(inpainted)
    older = to_png(image, replace(parameters, mask=digest(painted())))
    with pytest.raises(RequestRejected, match="drawn from a mask that is needed to draw it again: upload it"):
        replay(generator, older, image=picture())
    with pytest.raises(RequestRejected, match=r"drawn from a mask .* the uploaded one is another"):
        replay(generator, older, image=picture(), mask=Image.new("L", (32, 32), 255))
    assert comparison(generator, older, image=picture(), mask=painted()).is_identical


def test_masks_that_do_not_fit_their_picture_are_refused(generator: ImageGenerator, inpainted: bytes) -> None:
    image, parameters = read_png(inpainted)

    def replayed(mask: np.ndarray, **values: Any) -> None:
        replay(generator, to_png(image, replace(parameters, mask=to_text(mask), **values)), image=picture())

    for shape in [(8, 8), (32, 32), (16, 17), (1, 256)]:
        with pytest.raises(RequestRejected, match=f"mask of {shape[1]} x {shape[0]} for a picture of 32 x 32"):
            replayed(np.ones(shape, bool))
    with pytest.raises(RequestRejected, match="mask is empty"):
        replayed(np.zeros((16, 16), bool))
    with pytest.raises(RequestRejected, match="there is no picture to draw into"):
        replayed(np.ones((16, 16), bool), image=None)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (16, 16), (IMAGE_MAX_SIDE, IMAGE_MAX_SIDE)], ids=str)
def test_masks_survive_their_file(shape: tuple[int, int]) -> None:
    """At any picture size, with the longest prompts."""
    mask = np.random.default_rng(0).random(shape) < 0.5
    parameters = with_values(PARAMETERS, prompt="\a" * 1000, negative_prompt="\a" * 1000)
    parameters = replace(parameters, mask=to_text(mask))
    _, read = read_png(to_png(picture(), parameters))
    assert read == parameters
    np.testing.assert_array_equal(from_text(read.mask), mask)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"width": 64}, "is 32 x 32, and its settings say 64 x 32"),
        ({"steps": 10**9}, "steps = 1000000000"),
        ({"guidance_scale": float("nan")}, "guidance scale = nan"),
        ({"seed": -1}, "seed = -1"),
        ({"scheduler": "os.system"}, "scheduler = 'os.system'"),
        ({"prompt": ""}, "prompt is empty"),
    ],
    ids=str,
)
def test_parameters_that_nothing_can_be_drawn_from_are_refused(
    generator: ImageGenerator, made: bytes, values: dict[str, Any], message: str
) -> None:
    image, parameters = read_png(made)
    with pytest.raises(RequestRejected, match=message):
        replay(generator, to_png(image, with_values(parameters, **values)))


def test_a_picture_of_another_model_is_refused(generator: ImageGenerator, made: bytes) -> None:
    image, parameters = read_png(made)
    with pytest.raises(RequestRejected, match="revision ffff; this one is revision "):
        replay(generator, to_png(image, replace(parameters, revision="ffff")))


def test_files_of_older_versions_lack_options(made: bytes) -> None:
    _, parameters = read_png(made)
    older = {name: value for name, value in stored(parameters).items() if not name.startswith(("background", "vari"))}
    assert read_png(png(hfjax=json.dumps(older)))[1] == parameters
