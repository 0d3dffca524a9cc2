"""A scheduler's numbers against the scheduler itself, over whole runs with a model that is not linear."""

from collections.abc import Callable
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
    PNDMScheduler,
    UniPCMultistepScheduler,
)

from hfjax_app.images.schedule import NotLinear, probe

# diffusers turns a torch tensor into an array in the old way.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

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
}


def model(x: np.ndarray, timestep: float) -> np.ndarray:
    """Some nonlinear function of sample and time, in the place of a UNet."""
    return np.tanh(x[..., ::-1] * 0.9 + timestep / 1000)


def denoise_with_diffusers(scheduler: Any, steps: int, noise: np.ndarray) -> np.ndarray:
    scheduler = type(scheduler).from_config(scheduler.config)
    scheduler.set_timesteps(steps)
    x = torch.from_numpy(noise) * scheduler.init_noise_sigma
    for t in scheduler.timesteps:
        output = model(scheduler.scale_model_input(x, t).numpy(), float(t))
        x = scheduler.step(torch.from_numpy(output), t, x).prev_sample
    return x.numpy()


def denoise_with_numbers(scheduler: Any, steps: int, noise: np.ndarray) -> np.ndarray:
    schedule = probe(scheduler, steps)
    x, pairs = noise * schedule.noise_scale, []
    for i in range(schedule.steps):
        output = model(x * schedule.input_scales[i], float(schedule.timesteps[i]))
        pairs = [(x, output), *pairs][: schedule.depth]
        x = sum(
            schedule.coefficients[i, age, 0, 0] * sample + schedule.coefficients[i, age, 1, 0] * out
            for age, (sample, out) in enumerate(pairs)
        )
    return x


@pytest.mark.parametrize("steps", [1, 2, 5, 20, 37])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_run_equals_diffusers(name: str, steps: int) -> None:
    noise = np.random.default_rng(0).standard_normal((1, 1, 4, 4))
    expected = denoise_with_diffusers(SCHEDULERS[name](), steps, noise)
    np.testing.assert_allclose(denoise_with_numbers(SCHEDULERS[name](), steps, noise), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["DDIM, velocity", "PNDM", "Euler"])
def test_the_clean_sample_is_where_a_perfect_model_leads(name: str) -> None:
    """A model that knows the picture: from the first step the predicted clean sample is that picture."""
    scheduler = SCHEDULERS[name]()
    schedule = probe(scheduler, 10)
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
        lambda: DDPMScheduler(clip_sample=False),
        lambda: EulerAncestralDiscreteScheduler(),
        lambda: DPMSolverMultistepScheduler(algorithm_type="sde-dpmsolver++"),
        lambda: UniPCMultistepScheduler(),  # its corrector remembers everything
    ],
    ids=["clipping", "thresholding", "DDPM", "Euler ancestral", "SDE", "UniPC"],
)
def test_what_is_no_short_weighted_sum_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(NotLinear):
        probe(make(), 20)


def test_sixty_one_trailing_steps_end_at_the_picture() -> None:
    """diffusers counts 1000 / 61 in floating point and makes 62 timesteps. The last, -1, reads the noisiest entry of
    its table: the finished picture would be replaced by the model's guess for pure noise.
    """
    schedule = probe(SCHEDULERS["DDIM, velocity"](), 61)
    assert schedule.steps == 61
    assert schedule.timesteps.min() >= 0


def test_probing_leaves_the_scheduler_alone() -> None:
    scheduler = DDIMScheduler(clip_sample=False)
    before = scheduler.timesteps.clone()
    probe(scheduler, 7)
    assert torch.equal(scheduler.timesteps, before)
    assert scheduler.num_inference_steps is None


def test_padding_keeps_the_numbers_and_refuses_to_drop_any() -> None:
    schedule = probe(SCHEDULERS["DPM-Solver++"](), 5)
    padded = schedule.padded(4)
    assert padded.depth == 4
    np.testing.assert_array_equal(padded.coefficients[:, :2], schedule.coefficients)
    assert not padded.coefficients[:, 2:].any()
    with pytest.raises(NotLinear):
        schedule.padded(1)
