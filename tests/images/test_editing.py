"""Image to image and inpainting against diffusers' own pipelines in torch, given the same noise."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionImg2ImgPipeline, StableDiffusionInpaintPipeline, StableDiffusionPipeline
from PIL import Image, ImageDraw, ImageFilter

from hfjax_app.errors import RequestRejected
from hfjax_app.images import Comparison, ImageGenerator, ImageRequest, Picture, noise, replay
from hfjax_app.images.programs import DiffusionPrograms
from hfjax_app.images.schedule import GivenNoise

from .pipelines import stable_diffusion_3

SEED = 11
OPTIONS = {"steps": 6, "guidance_scale": 2.0}


def drawing() -> Image.Image:
    picture = Image.new("RGB", (32, 32), (40, 120, 200))
    ImageDraw.Draw(picture).ellipse((6, 6, 24, 20), fill=(230, 80, 30))
    return picture


def right_half() -> Image.Image:
    mask = Image.new("L", (32, 32))
    ImageDraw.Draw(mask).rectangle((16, 0, 31, 31), fill=255)
    return mask


def edited(generator: ImageGenerator, **options: Any) -> Picture:
    [picture] = list(generator.generate(ImageRequest("red dot", seed=SEED, **{**OPTIONS, **options})))[-1].pictures
    return picture


def torch_edited(kind: type, pipeline: StableDiffusionPipeline, shape: tuple[int, ...], **options: Any) -> np.ndarray:
    editor = kind(**pipeline.components, requires_safety_checker=False)
    editor.set_progress_bar_config(disable=True)
    first, spread = (torch.from_numpy(values) for values in noise.first_noise(SEED, shape))
    masked = [spread] if kind is StableDiffusionInpaintPipeline else []  # this pipeline encodes the masked picture too
    options = {"num_inference_steps": 6, "guidance_scale": 2.0, "height": 32, "width": 32} | options
    if kind is StableDiffusionImg2ImgPipeline:  # its size is the picture's
        del options["height"], options["width"]
    with GivenNoise(iter([spread, first, *masked])):
        return editor("red dot", image=drawing(), output_type="np", **options).images[0]


@pytest.mark.parametrize("strength", [0.5, 0.99, 1.0])
def test_image_to_image_equals_diffusers(
    pipeline: StableDiffusionPipeline, generator: ImageGenerator, strength: float, compilations: Callable
) -> None:
    with compilations() as seen:
        got = edited(generator, image=drawing(), strength=strength)
    assert seen == [], "strength and pictures are data"
    want = torch_edited(StableDiffusionImg2ImgPipeline, pipeline, generator.facts.latent_shape, strength=strength)
    np.testing.assert_allclose(got.pixels, want, atol=1e-3)


@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_inpainting_equals_diffusers(
    pipeline: StableDiffusionPipeline, generator: ImageGenerator, strength: float
) -> None:
    got = edited(generator, image=drawing(), mask=right_half(), strength=strength)
    want = torch_edited(
        StableDiffusionInpaintPipeline,
        pipeline,
        generator.facts.latent_shape,
        strength=strength,
        mask_image=right_half(),
    )
    np.testing.assert_allclose(got.pixels, want, atol=1e-3)
    whole = edited(generator, image=drawing(), strength=strength)
    kept, drawn = np.abs(got.latents - whole.latents)[..., :8].max(), np.abs(got.latents - whole.latents)[..., 8:].max()
    assert min(kept, drawn) > 1e-2, "the mask must matter on both sides"


def test_a_mask_that_no_latent_sees_is_refused(generator: ImageGenerator) -> None:
    """A dot between the pixels that mask latents was accepted, and nothing was drawn: the picture did not change."""
    dot = Image.new("L", (32, 32))
    dot.putpixel((7, 7), 255)
    with pytest.raises(RequestRejected, match="too small or thin to draw in; paint over at least 2 x 2"):
        generator.generate(ImageRequest("red dot", image=drawing(), mask=dot))
    ImageDraw.Draw(dot).rectangle((7, 7, 8, 8), fill=255)
    generator.generate(ImageRequest("red dot", image=drawing(), mask=dot)).close()


def test_a_shade_of_grey_in_a_mask_is_black_or_white(generator: ImageGenerator) -> None:
    """As in diffusers, shades from the middle on are white, also at a brush's soft edge."""
    options = {"image": drawing(), "steps": 2}
    with pytest.raises(RequestRejected, match="mask is empty"):
        generator.generate(ImageRequest("red dot", mask=Image.new("L", (32, 32), 127), **options))
    generator.generate(ImageRequest("red dot", mask=Image.new("L", (32, 32), 128), **options)).close()


def test_a_picture_of_another_shape_is_cut_around_its_middle(generator: ImageGenerator) -> None:
    """A wide or tall picture gives the same as its middle square."""
    wide, tall = Image.new("RGB", (96, 32), "black"), Image.new("RGB", (32, 96), "black")
    wide.paste(drawing(), (32, 0))
    tall.paste(drawing(), (0, 32))
    other = edited(generator, image=drawing(), strength=0.5).pixels
    for picture in (wide, tall):
        assert np.abs(edited(generator, image=picture, strength=0.5).pixels - other).mean() < 0.02
    transparent = drawing().convert("RGBA")
    np.testing.assert_array_equal(edited(generator, image=transparent, strength=0.5).pixels, other)


def test_a_size_that_the_model_cannot_draw_is_refused_at_once(folder: Path) -> None:
    with pytest.raises(RequestRejected, match="width = 100: must be a multiple of 8 from 32 to 2048"):
        ImageGenerator.from_pretrained(folder, sizes=[(100, 64)])


def test_a_size_that_the_denoiser_cannot_cut_into_patches_is_refused() -> None:
    """1,032 pixels are 129 latents, and Stable Diffusion 3 reads them two by two: diffusers raised while drawing."""
    pipeline = stable_diffusion_3(blocks=4)
    programs = DiffusionPrograms(pipeline)
    assert programs.size == (128, 128)
    with pytest.raises(RequestRejected, match="size = 136 x 128: must be multiples of 16 with this model"):
        programs.sizes.checked(136, None)
    assert programs.sizes.checked(144, 112) == (144, 112)


@pytest.mark.parametrize("shape", [(49, 60), (300, 103), (1, 4000), (784, 1000)])
def test_pictures_of_any_shape_are_cut_to_size(generator: ImageGenerator, shape: tuple[int, int]) -> None:
    """The quotients of these sides are rounded up: Pillow refuses a box that begins at -1e-14."""
    picture = Image.new("RGB", shape, (200, 40, 40))
    for mask, size in ((None, generator.facts.size), (Image.new("L", shape, 255), shape)):
        steps = generator.generate(ImageRequest("red dot", image=picture, mask=mask, steps=2, strength=1.0))
        assert list(steps)[-1].pictures[0].image.size == size


def photograph(size: tuple[int, int]) -> Image.Image:
    """Noise: each pixel that changes is seen."""
    return Image.fromarray(np.random.default_rng(3).integers(0, 256, (size[1], size[0], 3), np.uint8))


@pytest.mark.parametrize(
    ("size", "painted", "options"),
    [
        ((32, 32), (0, 0, 9, 9), {}),
        ((150, 100), (90, 20, 129, 60), {}),
        ((150, 100), (0, 20, 9, 60), {"softness": 3}),  # far from the middle
        ((150, 100), (70, 40, 79, 49), {"region": "marked"}),
        ((150, 100), (0, 0, 149, 99), {"region": "marked", "softness": 0}),
        ((64, 64), (60, 60, 63, 63), {"expand": "0,32,16,0"}),
        ((64, 64), None, {"expand": "16,16,16,16", "region": "marked"}),
    ],
    ids=str,
)
def test_painting_over_a_part_leaves_the_rest_alone(
    generator: ImageGenerator,
    size: tuple[int, int],
    painted: tuple[int, int, int, int] | None,
    options: dict[str, Any],
    compilations: Callable,
) -> None:
    """Everything went through the autoencoder, at the drawing's size. Replays give the same to the last bit."""
    picture = photograph(size)
    left, right, up, down = map(int, options.get("expand", "0,0,0,0").split(","))
    whole = (left + size[0] + right, up + size[1] + down)
    mask = None if painted is None else Image.new("L", size)
    drawn = np.ones((whole[1], whole[0]), bool)
    drawn[up : up + size[1], left : left + size[0]] = False
    if mask is not None and painted is not None:
        ImageDraw.Draw(mask).rectangle(painted, fill=255)
        drawn[up + painted[1] : up + painted[3] + 1, left + painted[0] : left + painted[2] + 1] = True
    with compilations() as seen:
        made = edited(generator, image=picture, mask=mask, strength=1.0, **options)
    assert (seen, made.image.size) == ([], whole)
    scale = made.place.box[2] / 32 * generator.facts.scale  # pixels of the picture a latent
    seam = round((options.get("softness", 1) + 1) * scale) + 1
    near = np.array(Image.fromarray(drawn).filter(ImageFilter.MaxFilter(2 * seam + 1)))
    apart = np.zeros((*near.shape, 3), np.int16)
    apart[up : up + size[1], left : left + size[0]] = picture
    apart = np.abs(np.asarray(made.image, np.int16) - apart).max(2)
    assert apart[~near].max(initial=0) == 0
    assert apart[drawn].mean() > 20
    [again] = [step for step in replay(generator, made.png, image=picture) if isinstance(step, Comparison)]
    assert again.is_identical, again.summary
    [again] = [step for step in replay(generator, made.png, image=picture, mask=mask) if isinstance(step, Comparison)]
    assert again.is_identical, again.summary


def test_the_marked_part_is_drawn_larger(generator: ImageGenerator) -> None:
    """The whole has a pixel of the drawing for nine, the marked part has about one for four."""
    mask = Image.new("L", (96, 96))
    ImageDraw.Draw(mask).rectangle((40, 40, 47, 47), fill=255)
    whole, marked = (
        edited(generator, image=photograph((96, 96)), mask=mask, region=region).place for region in ("whole", "marked")
    )
    assert whole.box == (0, 0, 96, 96)
    assert marked.box == (8, 8, 72, 72)
    assert marked.mask.sum() > whole.mask.sum()


def test_a_picture_smaller_than_the_drawing_is_enlarged(generator: ImageGenerator) -> None:
    mask = Image.new("L", (16, 12))
    ImageDraw.Draw(mask).rectangle((0, 0, 5, 5), fill=255)
    assert edited(generator, image=photograph((16, 12)), mask=mask).image.size == (32, 24)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"expand": "64,64"}, "expand = '64,64': must be the pixels left, right, up and down, such as 64,64,0,0"),
        ({"expand": "1,2,3,4,5"}, "expand ="),
        ({"expand": "-1,0,0,0"}, "expand ="),
        ({"expand": "0,0,0,2049"}, "expand = '0,0,0,2049'.*each at most 2048"),
        ({"expand": 7}, "expand = 7"),
        ({"expand": "1,0,0,0", "image": None}, "there is no picture to enlarge"),
        ({"region": "small"}, "region = 'small': must be whole or marked"),
        ({"region": "marked"}, "nothing is marked"),
        ({"softness": 8.5}, "softness = 8.5: must be a number from 0 to 8"),
        ({"softness": float("nan")}, "softness = nan"),
        ({"mask": Image.new("L", (32, 24), 255)}, "mask of 32 x 24: it must have the shape of the picture, 32 x 32"),
        ({"mask": Image.new("L", (32, 32), 255), "box": (0, 0, 0, 4)}, "box = .*: must be left, top, width and height"),
        ({"mask": Image.new("L", (32, 32), 255), "box": (0, 0, True, 4)}, "box ="),
        ({"mask": Image.new("L", (32, 32), 255), "box": (0, 0, 4, 10**9)}, "box ="),
        ({"mask": Image.new("L", (32, 32), 255), "box": (40, 0, 4, 4)}, "box = 40,0,4,4: it lies outside"),
        ({"mask": Image.new("L", (16, 16), 255), "box": (0, 0, 4, 4)}, "mask of 16 x 16: with a box it must be as la"),
        ({"box": (0, 0, 4, 4)}, "box: there is no mask"),
    ],
    ids=str,
)
def test_wrong_places_are_refused_at_once(generator: ImageGenerator, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestRejected, match=message) as caught:
        generator.generate(ImageRequest("red dot", **{"image": drawing()} | options))
    assert "\n" not in str(caught.value)


def test_a_box_of_a_forged_file_costs_little(generator: ImageGenerator) -> None:
    mask = Image.new("L", (32, 32), 255)
    for box in ((-999_999, -999_999, 10**6, 10**6), (5, -9, 1, 10**6), (-3, 31, 10**6, 1)):
        made = edited(generator, image=photograph((32, 32)), mask=mask, box=box)
        assert made.image.size == (32, 32)


def test_a_transparent_picture_is_white_there_and_says_so(generator: ImageGenerator) -> None:
    clear = Image.new("RGBA", (32, 32), (0, 0, 0, 0))
    white = Image.new("RGB", (32, 32), "white")
    steps = [
        [*generator.generate(ImageRequest("x", steps=2, seed=1, image=image, strength=0.5))][-1]
        for image in (clear, white)
    ]
    assert steps[0].image.tobytes() == steps[1].image.tobytes()
    assert [step.notice for step in steps] == ["what is transparent in the picture to start from was white", None]
    [again] = [
        step for step in replay(generator, steps[0].pictures[0].png, image=clear) if isinstance(step, Comparison)
    ]
    assert again.is_identical
