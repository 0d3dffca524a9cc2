"""A scheduler's numbers against the scheduler itself, over whole runs with a model that is not linear."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    HeunDiscreteScheduler,
    LCMScheduler,
    PNDMScheduler,
    UniPCMultistepScheduler,
)

from hfjax_app.images.schedule import GivenNoise, NotLinear, Timing, probe

VELOCITY = {"prediction_type": "v_prediction", "rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
SCHEDULERS = {
    "DDIM, noise": lambda: DDIMScheduler(clip_sample=False),
    "DDIM, sample": lambda: DDIMScheduler(clip_sample=False, prediction_type="sample"),
    "DDIM, velocity": lambda: DDIMScheduler(clip_sample=False, **VELOCITY),
    "PNDM": lambda: PNDMScheduler(skip_prk_steps=True, steps_offset=1, beta_schedule="scaled_linear"),
    "Euler": lambda: EulerDiscreteScheduler(),
    "Euler, Karras": lambda: EulerDiscreteScheduler(use_karras_sigmas=True, timestep_spacing="leading"),
    "DPM-Solver++": lambda: DPMSolverMultistepScheduler(),
    "DPM-Solver++ 3": lambda: DPMSolverMultistepScheduler(solver_order=3, use_karras_sigmas=True),
    "Heun": lambda: HeunDiscreteScheduler(),
    "UniPC, which corrects": lambda: UniPCMultistepScheduler(),
    "Euler ancestral": lambda: EulerAncestralDiscreteScheduler(timestep_spacing="trailing"),
    "LCM": lambda: LCMScheduler(),
    "DDPM": lambda: DDPMScheduler(clip_sample=False),
    "DPM-Solver++ SDE": lambda: DPMSolverMultistepScheduler(algorithm_type="sde-dpmsolver++"),
}


def model(x: np.ndarray, timestep: float) -> np.ndarray:
    """A nonlinear function of sample and timestep instead of a UNet."""
    return np.tanh(x[..., ::-1] * 0.9 + timestep / 1000)


def denoise_with_diffusers(scheduler: Any, steps: int, start: int, noise: np.ndarray, image: np.ndarray) -> np.ndarray:
    """From step `start` on as diffusers' pipelines do it; the last of `noise` [step, values] is the first sample's."""
    scheduler = type(scheduler).from_config(scheduler.config)
    scheduler.set_timesteps(steps)
    first, *fresh = torch.from_numpy(noise).reshape(len(noise), 1, 1, 1, -1).flip(0)
    timesteps = scheduler.timesteps[start * scheduler.order :]
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(start * scheduler.order)
    if start:
        x = scheduler.add_noise(torch.from_numpy(image).reshape(1, 1, 1, -1), first, timesteps[:1])
    else:
        x = first * scheduler.init_noise_sigma
    for t, z in zip(timesteps, fresh, strict=False):
        output = model(scheduler.scale_model_input(x, t).numpy(), float(t))
        with GivenNoise(iter([z])):
            x = scheduler.step(torch.from_numpy(output), t, x).prev_sample
    return x.numpy().ravel()


def denoise_with_numbers(scheduler: Any, steps: int, start: int, noise: np.ndarray, image: np.ndarray) -> np.ndarray:
    schedule = probe(scheduler, replace(Timing.of(steps), start=start))
    first, *fresh = noise[::-1]
    x = schedule.noising[0] @ [image, first] if start else first * schedule.noise_scale
    pairs: list[Any] = []
    memory = np.zeros_like(x)
    for i in range(schedule.steps):
        output = model(x * schedule.input_scales[i], float(schedule.timesteps[i]))
        pairs = [(x, output), *pairs][: schedule.depth]
        weights = schedule.coefficients[i, : len(pairs)]
        results = np.einsum("asr,asv->rv", weights, pairs) + schedule.extras[i].T @ [memory, fresh[i]]
        x, _, memory = results
    return x


@pytest.mark.parametrize(("steps", "start"), [(1, 0), (2, 0), (5, 0), (20, 0), (37, 0), (20, 13), (5, 4)])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_run_equals_diffusers(name: str, steps: int, start: int) -> None:
    """Whole runs, and runs that start in the middle from a noised picture."""
    random = np.random.default_rng(0)
    given = random.standard_normal((2 * steps + 2, 16)), random.standard_normal(16)
    expected = denoise_with_diffusers(SCHEDULERS[name](), steps, start, *given)
    got = denoise_with_numbers(SCHEDULERS[name](), steps, start, *given)
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["DDIM, velocity", "Euler", "UniPC, which corrects", "LCM"])
def test_what_is_kept_of_a_picture_is_as_noisy_as_the_rest(name: str) -> None:
    """Against diffusers' add_noise as its inpainting pipeline calls it: between steps, for the next step."""
    scheduler = SCHEDULERS[name]()
    schedule = probe(scheduler, Timing.of(10))
    scheduler.set_timesteps(10)
    picture, noise = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(0)).double()
    for i, t in enumerate(scheduler.timesteps):
        x = scheduler.scale_model_input(picture, t)
        scheduler.step(x, t, picture)
        want = scheduler.add_noise(picture, noise, scheduler.timesteps[i + 1 : i + 2]) if i < 9 else picture
        a, b = schedule.noising[i + 1]
        np.testing.assert_allclose(a * picture + b * noise, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["DDIM, velocity", "PNDM", "Euler"])
def test_the_clean_sample_is_where_a_perfect_model_leads(name: str) -> None:
    """A model that knows the picture: from the first step the predicted clean sample is that picture."""
    scheduler = SCHEDULERS[name]()
    schedule = probe(scheduler, Timing.of(10))
    random = np.random.default_rng(0)
    clean, noise = random.standard_normal((2, 8))
    i = 5
    alpha = float(scheduler.alphas_cumprod[round(float(schedule.timesteps[i]))])
    sample = alpha**0.5 * clean + (1 - alpha) ** 0.5 * noise
    output = alpha**0.5 * noise - (1 - alpha) ** 0.5 * clean if "velocity" in name else noise
    if name == "Euler":  # its samples are not scaled down
        sample = sample / alpha**0.5
    got = schedule.coefficients[i, 0, 0, 1] * sample + schedule.coefficients[i, 0, 1, 1] * output
    np.testing.assert_allclose(got, clean, atol=0.02)


@pytest.mark.parametrize(
    "make",
    [
        lambda: DDIMScheduler(),  # clips
        lambda: DDIMScheduler(clip_sample=False, thresholding=True),
    ],
    ids=["clipping", "thresholding"],
)
def test_steps_that_are_no_short_weighted_sum_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(NotLinear):
        probe(make(), Timing.of(20))


def test_sixty_one_trailing_steps_end_at_the_picture() -> None:
    """diffusers counts 1000 / 61 in floating point and makes 62 timesteps. The last, -1, reads the noisiest entry of
    its table: the finished picture would be replaced by the model's guess for pure noise.
    """
    schedule = probe(SCHEDULERS["DDIM, velocity"](), Timing.of(61))
    assert schedule.steps == 61
    assert schedule.timesteps.min() >= 0


def test_probing_leaves_the_scheduler_alone() -> None:
    scheduler = DDIMScheduler(clip_sample=False)
    before = scheduler.timesteps.clone()
    probe(scheduler, Timing.of(7))
    assert torch.equal(scheduler.timesteps, before)
    assert scheduler.num_inference_steps is None


def test_padding_keeps_the_numbers_and_refuses_to_drop_any() -> None:
    schedule = probe(SCHEDULERS["DPM-Solver++"](), Timing.of(5))
    padded = schedule.padded(4)
    assert padded.depth == 4
    np.testing.assert_array_equal(padded.coefficients[:, :2], schedule.coefficients)
    assert not padded.coefficients[:, 2:].any()
    with pytest.raises(NotLinear):
        schedule.padded(1)
