"""The image generator against diffusers' pipeline in torch, its seeds, limits and errors, on random weights."""

import dataclasses
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    DPMSolverSinglestepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    HeunDiscreteScheduler,
    IPNDMScheduler,
    LCMScheduler,
    PNDMScheduler,
    StableDiffusionPipeline,
    UniPCMultistepScheduler,
)
from PIL import Image

from hfjax_app.errors import ModelUnavailable, RequestRejected
from hfjax_app.images import ImageGenerator, ImageRequest, ImageStep, Picture, Waiting, noise
from hfjax_app.images.schedule import GivenNoise
from hfjax_app.line import FairLine

NOISE = np.random.default_rng(7).standard_normal((1, 4, 16, 16)).astype(np.float32)


def last(steps: Any) -> Picture:
    """The one picture that was asked for."""
    [picture] = list(steps)[-1].pictures
    return picture


def with_scheduler(pipeline: StableDiffusionPipeline, scheduler: Any) -> StableDiffusionPipeline:
    """The same networks with another scheduler."""
    changed = StableDiffusionPipeline(**{**pipeline.components, "scheduler": scheduler}, requires_safety_checker=False)
    changed.set_progress_bar_config(disable=True)
    return changed


def torch_pixels(pipeline: StableDiffusionPipeline, prompt: str, *, steps: int = 6, **options: Any) -> np.ndarray:
    """diffusers' own picture before rounding, float32 [height, width, 3]."""
    latents = torch.from_numpy(NOISE.copy())
    return pipeline(prompt, num_inference_steps=steps, latents=latents, output_type="np", **options).images[0]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"negative_prompt": "blue square"},
        {"guidance_scale": 1.0},
        {"guidance_scale": 0.0},
        {"guidance_scale": 3.0, "steps": 11},
        {"steps": 1},
    ],
    ids=str,
)
def test_equals_diffusers_in_torch(
    pipeline: StableDiffusionPipeline, generator: ImageGenerator, options: dict[str, Any]
) -> None:
    options = {"prompt": "red dot", "steps": 6} | options
    got = last(generator.generate(ImageRequest(latents=NOISE, **options)))
    want = torch_pixels(pipeline, **options)
    assert got.pixels.shape == (32, 32, 3)
    assert want.std() > 0.05, "the comparison needs a picture"
    np.testing.assert_allclose(got.pixels, want, atol=1e-3)
    assert np.abs(np.asarray(got.image, np.float32) - want * 255).max() < 0.5 + 0.255


@pytest.mark.parametrize(
    ("prompt", "negative", "guidance"),
    [
        ("a red dot on a lake of many more letters than fit", "", 3.0),
        ("a red dot", "a blurry blue square in a sky of grey", 3.0),
        ("a red dot BREAK a blue square", "", 1.0),
    ],
)
def test_prompts_longer_than_the_text_encoder_reads_equal_diffusers(
    pipeline: StableDiffusionPipeline,
    generator: ImageGenerator,
    compilations: Callable,
    prompt: str,
    negative: str,
    guidance: float,
) -> None:
    """In pieces of 14 letters, and the states one after the other, as diffusers takes them as embeddings."""

    def states(text: str, count: int = 1) -> torch.Tensor:
        letters = [pipeline.tokenizer(part, add_special_tokens=False).input_ids for part in text.split("BREAK")]
        pieces = [part[at : at + 14] for part in letters for at in range(0, len(part), 14)]
        pieces += [[]] * (count - len(pieces))
        rows = [[0, *piece, *[1] * (15 - len(piece))] for piece in pieces]
        with torch.no_grad():
            return torch.cat([pipeline.text_encoder(torch.tensor([row]))[0] for row in rows], dim=1)

    count = max(states(text).shape[1] // 16 for text in (prompt, negative))
    assert 1 < count <= 4
    with compilations() as seen:
        step = [
            *generator.generate(
                ImageRequest(prompt, negative_prompt=negative, guidance_scale=guidance, steps=4, latents=NOISE)
            )
        ][-1]
    assert (seen, step.notice) == ([], None)
    embeddings = {"prompt_embeds": states(prompt, count), "negative_prompt_embeds": states(negative, count)}
    want = torch_pixels(pipeline, None, steps=4, guidance_scale=guidance, **embeddings)
    np.testing.assert_allclose(step.pictures[0].pixels, want, atol=1e-3)
    short = last(generator.generate(ImageRequest(prompt[:9], guidance_scale=guidance, steps=4, latents=NOISE)))
    assert np.abs(short.pixels - want).max() > 0.01


@pytest.mark.parametrize("skip", [0, 1, 2])
def test_clip_skip_equals_diffusers(
    pipeline: StableDiffusionPipeline,
    generator: ImageGenerator,
    skip: int,
    compilations: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the last layers of the text encoder left out, by the same program."""
    # diffusers 0.42 looks for the last normalisation where transformers 4 had it
    monkeypatch.setitem(pipeline.text_encoder.__dict__, "text_model", pipeline.text_encoder)
    options = {"guidance_scale": 3.0, "negative_prompt": "blue", "steps": 3}
    with compilations() as seen:
        got = last(generator.generate(ImageRequest("red dot", clip_skip=skip, latents=NOISE, **options)))
    assert seen == []
    np.testing.assert_allclose(got.pixels, torch_pixels(pipeline, "red dot", clip_skip=skip, **options), atol=1e-3)
    usual = last(generator.generate(ImageRequest("red dot", latents=NOISE, **options))).pixels
    assert (np.abs(got.pixels - usual).max() > 1e-2) == (skip > 0)


KARRAS = {"use_karras_sigmas": True}
SDE = {"algorithm_type": "sde-dpmsolver++"}
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "DDIM": (DDIMScheduler, {}),
    "Euler": (EulerDiscreteScheduler, {}),
    "Euler Karras": (EulerDiscreteScheduler, KARRAS),
    "Euler ancestral": (EulerAncestralDiscreteScheduler, {}),
    "DPM++ 2M": (DPMSolverMultistepScheduler, {}),
    "DPM++ 2M Karras": (DPMSolverMultistepScheduler, KARRAS),
    "DPM++ 2M SDE": (DPMSolverMultistepScheduler, SDE),
    "DPM++ 2M SDE Karras": (DPMSolverMultistepScheduler, SDE | KARRAS),
    "UniPC": (UniPCMultistepScheduler, {}),
    "LCM": (LCMScheduler, {}),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_scheduler_equals_diffusers(
    pipeline: StableDiffusionPipeline, folder: Path, generator: ImageGenerator, name: str, compilations: Callable
) -> None:
    """The same networks under diffusers' own class, given the noise that the device draws; nothing compiles.

    Random networks amplify. Enough pixels must not be clipped to black or white.
    """
    assert generator.facts.schedulers == tuple(KINDS)
    own = DDIMScheduler.from_pretrained(folder, subfolder="scheduler")
    kind, settings = KINDS[name]
    changed = with_scheduler(pipeline, kind.from_config(own.config, **settings))
    shape = generator.facts.latent_shape
    fresh = [np.asarray(noise.step_noise(noise.key_of(5), i, shape)) for i in range(6)]
    with compilations() as seen:
        got = last(
            generator.generate(
                ImageRequest("red dot", steps=6, guidance_scale=2.0, latents=NOISE, seed=5, scheduler=name)
            )
        )
    assert seen == []
    with GivenNoise(torch.tensor(values) for values in fresh):
        want = torch_pixels(changed, "red dot", guidance_scale=2.0)
    assert ((want > 0) & (want < 1)).mean() > 0.3, "the comparison needs a picture"
    np.testing.assert_allclose(got.pixels, want, atol=1e-3)


def test_the_schedulers_of_stable_diffusion_1_equal_diffusers(pipeline: StableDiffusionPipeline) -> None:
    """PNDM, its own, uses the most earlier steps. Heun's calls the denoiser twice a step."""
    betas = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
    own = PNDMScheduler(skip_prk_steps=True, steps_offset=1, **betas)
    generator = ImageGenerator(with_scheduler(pipeline, own))
    assert generator.facts.schedulers[:2] == ("PNDMScheduler", "DDIM")
    assert {*KINDS, "Heun", "DPM++ SDE", "DPM++ SDE Karras"} < set(generator.facts.schedulers)
    shape = generator.facts.latent_shape
    fresh = [torch.tensor(np.asarray(noise.step_noise(noise.key_of(5), i, shape))) for i in range(6)]
    for name, scheduler in {
        "PNDMScheduler": own,
        "Heun": HeunDiscreteScheduler.from_config(own.config),
        "DPM++ SDE": DPMSolverSinglestepScheduler.from_config(own.config, **SDE, lower_order_final=True),
    }.items():
        options = {"guidance_scale": 2.0, "steps": 6}
        got = last(generator.generate(ImageRequest("red dot", latents=NOISE, seed=5, scheduler=name, **options)))
        with GivenNoise(iter(fresh)):
            want = torch_pixels(with_scheduler(pipeline, scheduler), "red dot", **options)
        np.testing.assert_allclose(got.pixels, want, atol=1e-3, err_msg=name)


def test_the_prompt_the_negative_prompt_and_guidance_matter(generator: ImageGenerator) -> None:
    def draw(prompt: str = "red dot", steps: int = 4, **options: Any) -> np.ndarray:
        return last(generator.generate(ImageRequest(prompt, steps=steps, latents=NOISE, **options))).pixels

    pictures = [draw(), draw("blue square"), draw(negative_prompt="cat"), draw(guidance_scale=2.0), draw(steps=5)]
    for one, other in itertools.combinations(pictures, 2):
        assert np.abs(one - other).max() > 0.01


def test_steps_come_with_previews_and_end_with_the_image(generator: ImageGenerator) -> None:
    steps = list(generator.generate(ImageRequest("red dot", steps=5, seed=3)))
    assert [step.step for step in steps] == [1, 2, 3, 4, 5]
    assert {step.steps for step in steps} == {5}
    assert [step.is_last for step in steps] == [False] * 4 + [True]
    assert [step.seconds for step in steps] == sorted(step.seconds for step in steps)
    assert steps[1].seconds_left == pytest.approx(steps[1].seconds * 3 / 2)
    assert steps[-1].seconds_left == 0
    pictures = [step.pictures[0] for step in steps]
    assert {picture.seed for picture in pictures} == {3}
    assert {step.previews[0].size for step in steps} == {(32, 32)} == {generator.facts.size}
    assert [picture.image is None for picture in pictures] == [True] * 4 + [False]
    assert steps[-1].previews == [pictures[-1].image]
    assert isinstance(pictures[-1].image, Image.Image)
    with pytest.raises(dataclasses.FrozenInstanceError):
        steps[0].step = 2


def test_previews_are_made_at_the_first_access(generator: ImageGenerator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that reads only the pictures decodes only them."""
    programs, decoded = generator._programs.sized(generator.facts.size), []
    decode = programs._decode
    monkeypatch.setattr(programs, "_decode", lambda *args: decoded.append(args) or decode(*args))
    steps = list(generator.generate(ImageRequest("red dot", steps=3, images=2, seed=3)))
    assert len(decoded) == 2
    assert [image.size for image in steps[1].previews] == [generator.facts.size] * 2
    assert steps[1].previews is steps[1].previews
    assert list(steps[2].previews) == [picture.image for picture in steps[2].pictures]
    assert len(decoded) == 4


def test_a_caller_may_do_without_previews(generator: ImageGenerator) -> None:
    steps = [
        each
        for each in generator.generate(ImageRequest("a", steps=2, seed=1), previews=False)
        if isinstance(each, ImageStep)
    ]
    assert [len(step.previews) for step in steps] == [0, 0]
    assert steps[-1].image is not None


def test_the_preview_is_the_predicted_picture(pipeline: StableDiffusionPipeline, generator: ImageGenerator) -> None:
    """After the first step: diffusers' predicted clean sample, decoded by the torch decoder."""
    first = next(generator.generate(ImageRequest("red dot", steps=5, guidance_scale=1.0, latents=NOISE)))
    scheduler = DDIMScheduler.from_config(pipeline.scheduler.config)
    scheduler.set_timesteps(5)
    t, x = scheduler.timesteps[0], torch.from_numpy(NOISE)
    with torch.no_grad():
        states, _ = pipeline.encode_prompt("red dot", "cpu", 1, False)
        clean = scheduler.step(pipeline.unet(x, t, states).sample, t, x).pred_original_sample
        pixels = pipeline.vae.decode(clean / pipeline.vae.config.scaling_factor).sample[0].permute(1, 2, 0)
    want = ((pixels / 2 + 0.5).clamp(0, 1) * 255).numpy()
    assert np.abs(np.asarray(first.previews[0], np.float32) - want).max() < 1


def test_same_seed_same_image(generator: ImageGenerator) -> None:
    one, same, other = (
        last(generator.generate(ImageRequest("red dot", steps=3, seed=seed))) for seed in (5, 5, 2**64 - 1)
    )
    np.testing.assert_array_equal(one.pixels, same.pixels)
    assert np.abs(one.pixels - other.pixels).max() > 0.01


def test_a_random_seed_is_reported_and_draws_the_same_again(generator: ImageGenerator) -> None:
    one, other = (last(generator.generate(ImageRequest("red dot", steps=3))) for _ in range(2))
    assert one.seed != other.seed
    again = last(generator.generate(ImageRequest("red dot", steps=3, seed=one.seed)))
    np.testing.assert_array_equal(one.pixels, again.pixels)


def test_given_latents_are_left_alone(generator: ImageGenerator) -> None:
    """The program donates its latents, which must not be the caller's array."""
    mine = NOISE.copy()
    one = last(generator.generate(ImageRequest("red dot", steps=3, latents=mine)))
    np.testing.assert_array_equal(mine, NOISE)
    np.testing.assert_array_equal(
        last(generator.generate(ImageRequest("red dot", steps=3, latents=mine))).pixels, one.pixels
    )


def test_drawing_compiles_nothing(generator: ImageGenerator, compilations: Callable) -> None:
    """Two pictures with other prompts, steps, guidance and seeds."""
    with compilations() as seen:
        last(generator.generate(ImageRequest("red dot", steps=4, guidance_scale=7.5, seed=1)))
        last(generator.generate(ImageRequest("blue", negative_prompt="cat", steps=9, guidance_scale=3, seed=2**63)))
    assert seen == []


def test_no_weight_is_a_constant_of_a_program(generator: ImageGenerator) -> None:
    """The largest constant of any program is smaller than the smallest convolution of the tiny networks."""
    for text in generator._programs.sized(generator.facts.size).texts():
        shapes = re.findall(r"= \w+\[([\d,]*)\]\S* constant\(", text)
        assert shapes
        assert max(np.prod([int(n) for n in shape.split(",") if n]) for shape in shapes) <= 256


def test_closing_between_steps_stops_and_frees_the_device(generator: ImageGenerator) -> None:
    steps = generator.generate(ImageRequest("red dot", steps=100, seed=1))
    next(steps)
    steps.close()
    assert list(steps) == []
    assert last(generator.generate(ImageRequest("red dot", steps=2, seed=1))).image is not None


def test_two_users_alternate(generator: ImageGenerator) -> None:
    """Neither waits for the other's picture to be finished: the device is free after each step, and is taken in the
    order of arrival."""
    users = [generator.generate(ImageRequest("red dot", steps=4, seed=seed)) for seed in (1, 2)]
    for step in range(1, 5):
        assert [next(user).step for user in users] == [step, step]
    assert isinstance(generator._denoising_loop._device, FairLine)


def test_a_cut_prompt_is_shown(generator: ImageGenerator) -> None:
    """The model reads eight pieces of 16 tokens, which are 14 letters between the start and the end."""
    whole = "abcdefghijklmn" * 8

    def notice(prompt: str, negative_prompt: str = "") -> str | None:
        return next(generator.generate(ImageRequest(prompt, negative_prompt=negative_prompt, steps=1, seed=1))).notice

    assert notice("red dot") is None
    assert notice(whole) is None
    assert notice(f"{whole}o") == "the end of the prompt was not read: 'o'"
    assert notice(f"{whole} red (dots:1.2)", f"{whole[1:]} abc") == (
        "the end of the prompt was not read: 'red dots'; the end of the negative prompt was not read: 'bc'"
    )
    assert notice("(a __colour__ dot:1.2)") == "prompt: read as text: __colour__"


def test_pictures_of_a_batch_are_what_their_seeds_give_alone(generator: ImageGenerator) -> None:
    """To the last bit, also with fresh noise at every step; seeds increase by one and wrap at the end of the range."""
    options = {"steps": 3, "scheduler": "Euler ancestral"}
    *_, step = generator.generate(ImageRequest("red dot", seed=2**64 - 2, images=4, **options))
    assert [picture.seed for picture in step.pictures] == [2**64 - 2, 2**64 - 1, 0, 1]
    alone = last(generator.generate(ImageRequest("red dot", seed=0, **options)))
    np.testing.assert_array_equal(step.pictures[2].pixels, alone.pixels)
    for one, other in itertools.combinations(step.pictures, 2):
        assert np.abs(one.pixels - other.pixels).max() > 0.01


def test_variations_lie_between_two_seeds(generator: ImageGenerator, compilations: Callable) -> None:
    """At the ends they are the two pictures, to the last bit; the noise between has the same variance."""
    options = {"steps": 3, "scheduler": "Euler ancestral"}
    near = last(generator.generate(ImageRequest("red dot", seed=5, **options))).pixels
    with compilations() as seen:
        *_, step = generator.generate(
            ImageRequest("red dot", seed=8, images=2, variation_of=5, variation=0.25, **options)
        )
    assert seen == []
    assert [picture.seed for picture in step.pictures] == [8, 9]
    alone = last(generator.generate(ImageRequest("red dot", seed=9, variation_of=5, variation=0.25, **options)))
    np.testing.assert_array_equal(step.pictures[1].pixels, alone.pixels)
    assert np.abs(alone.pixels - near).max() > 0.01
    same = last(generator.generate(ImageRequest("red dot", seed=9, variation_of=5, variation=0, **options))).pixels
    np.testing.assert_array_equal(same, near)
    first, other = (noise.first_noise(seed, (1, 4, 64, 64))[0] for seed in (5, 9))
    np.testing.assert_array_equal(noise.between(first, other, 1), other)
    np.testing.assert_array_equal(noise.between(first, first, 0.5), first)
    shares = [noise.between(first, other, share) for share in (0.2, 0.5, 0.8)]
    assert [share.std() for share in shares] == pytest.approx([1, 1, 1], abs=0.02)
    apart = [float(np.linalg.norm(share - first)) for share in shares]
    assert apart == sorted(apart)


def test_every_bit_of_a_seed_decides_the_noise_of_the_steps(generator: ImageGenerator) -> None:
    """Two seeds whose lower halves are the same, from the same first noise."""
    options = {"steps": 3, "scheduler": "Euler ancestral", "latents": NOISE}
    one, other = (
        last(generator.generate(ImageRequest("red dot", seed=seed, **options))).pixels for seed in (5, 5 + 2**32)
    )
    assert np.abs(one - other).max() > 0.01


def test_fifth_request_waits_in_line(generator: ImageGenerator) -> None:
    """Four are served together; the others know their place, move up, and can leave."""
    served = [generator.generate(ImageRequest("red dot", steps=2, seed=seed)) for seed in range(4)]
    for steps in served:
        assert isinstance(next(steps), ImageStep)
    fifth, sixth = (generator.generate(ImageRequest("red dot", steps=2, seed=seed)) for seed in (5, 6))
    assert next(fifth) == Waiting(reason="number 1 in the line")
    assert next(sixth) == Waiting(reason="number 2 in the line")
    fifth.close()
    assert next(sixth) == Waiting(reason="number 1 in the line")
    served[0].close()
    assert last(sixth).image is not None
    for steps in served[1:]:
        assert last(steps).image is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": ""}, "empty"),
        ({"prompt": " \n"}, "empty"),
        ({"prompt": None}, "NoneType"),
        ({"prompt": "a" * 10_001}, "10,001 characters: at most 10,000"),
        ({"prompt": "a\ud800"}, "surrogate"),
        ({"prompt": "a\0"}, "NUL"),
        ({"negative_prompt": "a" * 10_001}, "negative prompt of 10,001 characters: at most 10,000"),
        ({"negative_prompt": "\udfff"}, "surrogate"),
        ({"negative_prompt": "\0"}, "NUL"),
        ({"steps": 0}, "steps = 0: must be a whole number from 1 to 100"),
        ({"steps": -1}, "steps = -1"),
        ({"steps": 101}, "steps = 101"),
        ({"steps": 10**9}, "steps = 1000000000"),
        ({"steps": True}, "steps = True"),
        ({"steps": 5.0}, "steps = 5.0"),
        ({"steps": float("nan")}, "steps = nan"),
        ({"steps": "5"}, "steps = '5'"),
        ({"guidance_scale": float("nan")}, "guidance scale = nan: must be a number from 0 to 20"),
        ({"guidance_scale": float("inf")}, "guidance scale = inf"),
        ({"guidance_scale": -1}, "guidance scale = -1"),
        ({"guidance_scale": 20.5}, "guidance scale = 20.5"),
        ({"guidance_scale": True}, "guidance scale = True"),
        ({"seed": -1}, "seed = -1: must be a whole number from 0 to 18446744073709551615"),
        ({"seed": 2**64}, "seed = 18446744073709551616"),
        ({"seed": 1.5}, "seed = 1.5"),
        ({"seed": False}, "seed = False"),
        ({"seed": "1"}, "seed = '1'"),
        ({"images": 0}, "images = 0: must be a whole number from 1 to 4"),
        ({"images": 5}, "images = 5"),
        ({"images": None}, "images = None"),
        ({"scheduler": "DDPM"}, "scheduler = 'DDPM': must be one of DDIM, Euler, Euler Karras, Euler"),
        ({"scheduler": ["DDIM"]}, "scheduler ="),
        ({"scheduler": "LCM", "steps": 51}, "steps = 51: LCMScheduler can't do that many"),
        ({"width": 33}, "width = 33: must be a multiple of 8 from 32 to 2048"),
        ({"height": 100}, "height = 100"),
        ({"height": 24}, "height = 24"),
        ({"width": 4096}, "width = 4096"),
        ({"width": 32.0}, "width = 32.0"),
        ({"width": True}, "width = True"),
        ({"width": 72, "height": 64}, "size = 72 x 64: at most 4,096 pixels"),
        ({"image": "cat.png"}, "image: must be a picture, not str"),
        ({"mask": Image.new("L", (8, 8), 255)}, "no picture to draw into"),
        ({"image": Image.new("RGB", (8, 8)), "mask": Image.new("L", (8, 8))}, "mask is empty"),
        ({"image": Image.new("RGB", (8, 8)), "mask": b"x"}, "mask: must be a picture, not bytes"),
        ({"strength": 1.5}, "strength = 1.5: must be a number from 0 to 1"),
        ({"strength": float("nan")}, "strength = nan"),
        ({"variation_of": -1}, "variation of = -1: must be a whole number from 0 to 18446744073709551615"),
        ({"variation_of": 1, "variation": 1.5}, "variation = 1.5: must be a number from 0 to 1"),
        ({"variation": "0.5"}, "variation = '0.5'"),
        ({"image": Image.new("RGB", (8, 8)), "strength": 0.01}, "strength = 0.01: of 20 steps it leaves none"),
        ({"clip_skip": -1}, "clip skip = -1: must be a whole number from 0 to 12"),
        ({"clip_skip": 3}, "clip skip = 3: at most 2 with this model"),
        ({"latents": np.zeros((1, 4, 8, 8))}, "latents"),
        ({"latents": np.full((1, 4, 16, 16), np.nan)}, "latents: must be finite"),
    ],
    ids=lambda value: str(value)[:40].encode("ascii", "replace").decode(),
)
def test_bad_input_is_refused_by_the_call_itself(
    generator: ImageGenerator, options: dict[str, Any], message: str
) -> None:
    """Before the first step is asked for; each limit is named."""
    with pytest.raises(RequestRejected, match=message):
        generator.generate(ImageRequest(**{"prompt": "red dot"} | options))


def test_pixels_that_are_no_numbers_are_an_error(make_pipeline: Callable[..., StableDiffusionPipeline]) -> None:
    """A black picture would look like a result."""
    broken = make_pipeline()
    with torch.no_grad():
        broken.vae.decoder.conv_out.bias.fill_(float("nan"))
    with pytest.raises(ModelUnavailable, match="NaN"):
        ImageGenerator(broken)


def test_latents_that_are_no_numbers_are_an_error_at_their_step(generator: ImageGenerator) -> None:
    """The denoiser overflows at once. Previews were black all the way, and the error came after the last step."""
    steps = generator.generate(
        ImageRequest("red dot", steps=5, images=2, latents=np.full(generator.facts.latent_shape, 3e38))
    )
    with pytest.raises(ModelUnavailable, match=r"no numbers \(NaN\) in step 1;"):
        next(steps)
    assert last(generator.generate(ImageRequest("red dot", steps=2, seed=1))).image is not None, (
        "other requests are not affected"
    )


def test_a_large_picture_has_a_preview_too(make_pipeline: Callable[..., StableDiffusionPipeline]) -> None:
    """Above 128 pixels previews come from a linear map, which must resemble what the decoder shows."""
    large = ImageGenerator(make_pipeline(latent_size=72))
    assert large.facts.size == (144, 144)
    steps = list(large.generate(ImageRequest("red dot", steps=3, seed=1)))
    assert steps[0].previews[0].size == (144, 144)
    # The last clean prediction but one is close to the final latents of this short run.
    shown, true = (np.asarray(step.previews[0].resize((18, 18), Image.Resampling.BOX), float) for step in steps[-2:])
    assert np.corrcoef(shown.ravel(), true.ravel())[0, 1] > 0.5


def test_a_scheduler_that_does_not_fit_is_refused(pipeline: StableDiffusionPipeline) -> None:
    with pytest.raises(ModelUnavailable, match="IPNDMScheduler can't run in a compiled program: "):
        ImageGenerator(with_scheduler(pipeline, IPNDMScheduler()))


def damage_none(folder: Path) -> None:
    """Leave only the configurations."""
    for file in folder.rglob("*.safetensors"):
        file.unlink()


def damage_one(folder: Path) -> None:
    """One network of three has no weights."""
    (folder / "unet" / "diffusion_pytorch_model.safetensors").unlink()


def damage_truncate(folder: Path) -> None:
    file = folder / "vae" / "diffusion_pytorch_model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def damage_pickle(folder: Path) -> None:
    for file in list(folder.rglob("*.safetensors")):
        torch.save({}, file.with_suffix(".bin"))
        file.unlink()


def damage_index(folder: Path) -> None:
    (folder / "model_index.json").unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_none, "has no weights"),
        (damage_one, "unet"),
        (damage_truncate, "truncated"),
        (damage_pickle, "only safetensors"),
        (damage_index, "model_index.json"),
    ],
)
def test_a_bad_folder_says_why(
    pipeline: StableDiffusionPipeline, tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    pipeline.save_pretrained(tmp_path)
    damage(tmp_path)
    with pytest.raises(ModelUnavailable, match=message) as caught:
        ImageGenerator.from_pretrained(tmp_path)
    assert "\n" not in str(caught.value)
