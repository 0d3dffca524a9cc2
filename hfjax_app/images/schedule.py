"""A diffusers scheduler as numbers that a compiled program takes as arguments.

diffusers' schedulers keep Python state and branch on it, so they can't be traced. But a deterministic sampler is
linear: the next sample is a weighted sum of the latest samples and model outputs, with weights that depend on the step
alone (DDIM, arXiv:2010.02502, equation 12; multistep solvers add earlier outputs). The weights are found by running the
real scheduler class on unit vectors, and checked on random ones. So diffusers decides what a step does, any number of
steps runs in one program, and the latents stay on the device.

Does not cover stochastic samplers, samplers that clip or threshold (not linear), nor those whose step depends on
everything since the first one (UniPC's corrector).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from diffusers import DDIMScheduler

MAX_DEPTH = 6  # PNDM, the deepest of diffusers' usual ones, looks at five pairs


class NotLinear(Exception):
    """The scheduler's steps are no weighted sums of a few samples and outputs; the message says what was seen."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """The numbers of one denoising run of N steps.

    Attributes:
        noise_scale: factor of the unit normal noise that the run starts from.
        timesteps: float32 [N], what the UNet is told.
        input_scales: float32 [N], factor of the sample before the UNet sees it.
        coefficients: float32 [N, depth, 2, 2]: step, age in steps, (sample, model output), (next sample, predicted
            clean sample). Age 0 is the step itself.
    """

    noise_scale: float
    timesteps: np.ndarray
    input_scales: np.ndarray
    coefficients: np.ndarray

    @property
    def steps(self) -> int:
        """UNet calls in the run; a scheduler may make one or two more than it was asked for."""
        return len(self.timesteps)

    @property
    def depth(self) -> int:
        """Pairs of (sample, model output) that a step looks at, its own included."""
        return self.coefficients.shape[1]

    def padded(self, depth: int) -> "Schedule":
        """The same schedule with zeros for older pairs, so that schedules of one scheduler share a program.

        Raises:
            NotLinear: it looks at more than `depth` pairs.
        """
        if self.depth > depth:
            raise NotLinear(f"it looks back {self.depth - 1} steps here, and {depth - 1} elsewhere")
        widths = [(0, 0), (0, depth - self.depth), (0, 0), (0, 0)]
        return Schedule(
            noise_scale=self.noise_scale,
            timesteps=self.timesteps,
            input_scales=self.input_scales,
            coefficients=np.pad(self.coefficients, widths),
        )


def probe(scheduler: Any, steps: int) -> Schedule:
    """The schedule of a diffusers scheduler for `steps` steps. The scheduler itself is left as it is.

    Raises:
        NotLinear: see the module's text.
        Exception: whatever the scheduler raises where it can't do this number of steps.
    """
    count = len(_timesteps(_fresh(scheduler, steps)))
    units = np.eye(2 * count).reshape(2, count, 2 * count)
    noise_scale, timesteps, input_scales, found = _run(scheduler, steps, *units)
    # found: [step, (next, clean), 2 * count] -> [step, given at step, (sample, output), (next, clean)]
    weights = found.reshape(count, 2, 2, count).transpose(0, 3, 2, 1)
    if not np.isfinite(weights).all() or not np.isfinite(input_scales).all():
        raise NotLinear("its formulas divide by zero for this schedule")

    random = np.random.default_rng(0).standard_normal((2, count, 16)) * 3
    _, _, _, seen = _run(scheduler, steps, *random)
    expected = np.einsum("nasc,sav->ncv", weights, random)
    size = np.einsum("nasc,sav->ncv", np.abs(weights), np.abs(random))
    if not (np.abs(seen - expected) <= 1e-4 * (size + 1)).all():
        raise NotLinear("it clips, thresholds or adds noise")

    ages = [step - given for step, given in np.argwhere((weights != 0).any((2, 3)))]
    depth = 1 + max(ages)
    if depth > MAX_DEPTH:
        raise NotLinear(f"it looks back {depth - 1} steps; at most {MAX_DEPTH - 1} are kept")
    coefficients = np.zeros((count, depth, 2, 2), np.float32)
    for step in range(count):
        for age in range(min(depth, step + 1)):
            coefficients[step, age] = weights[step, step - age]
    return Schedule(
        noise_scale=noise_scale,
        timesteps=timesteps.astype(np.float32),
        input_scales=input_scales.astype(np.float32),
        coefficients=coefficients,
    )


def _fresh(scheduler: Any, steps: int) -> Any:
    """A scheduler of the same class and configuration, set to a number of steps: schedulers remember earlier calls."""
    fresh = type(scheduler).from_config(scheduler.config)
    fresh.set_timesteps(steps)
    return fresh


def _timesteps(scheduler: Any) -> list[torch.Tensor]:
    """The scheduler's timesteps; of "trailing" ones without those below zero.

    diffusers counts trailing ones down in floating point and, for 61 of 1000 steps, arrives at -1 after the last.
    """
    trailing = scheduler.config.get("timestep_spacing") == "trailing"
    return [t for t in scheduler.timesteps if t >= 0 or not trailing]


def _run(
    scheduler: Any, steps: int, samples: np.ndarray, outputs: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """Run the scheduler with samples and model outputs that are given, each float64 [step, values], at every step.

    Returns:
        init_noise_sigma; timesteps [step]; input scales [step]; next and clean samples [step, 2, values].
    """
    fresh = _fresh(scheduler, steps)
    clean = _clean_formula(scheduler, steps)
    timesteps, scales, results = [], [], []
    for t, sample, output in zip(_timesteps(fresh), samples, outputs, strict=True):
        x, e = (torch.from_numpy(values).reshape(1, 1, 1, -1) for values in (sample, output))
        largest = int(np.abs(sample).argmax())
        scales.append(fresh.scale_model_input(x, t).flatten()[largest].item() / sample[largest])
        result = fresh.step(e, t, x)
        predicted = getattr(result, "pred_original_sample", None)
        if predicted is None:
            predicted = clean(e, t, x) if clean else result.prev_sample
        timesteps.append(float(t))
        results.append(np.stack([result.prev_sample.double().flatten(), predicted.double().flatten()]))
    return float(fresh.init_noise_sigma), np.array(timesteps), np.array(scales), np.stack(results)


def _clean_formula(scheduler: Any, steps: int) -> Any:
    """For schedulers that don't say what they take for the clean sample: DDIM's formula, from diffusers' own class.

    None where the scheduler's samples are scaled differently (Karras et al.'s sigmas).
    """
    fresh = _fresh(scheduler, steps)
    if float(fresh.init_noise_sigma) != 1 or not hasattr(fresh, "alphas_cumprod"):
        return None
    ddim = DDIMScheduler.from_config(scheduler.config, clip_sample=False, thresholding=False)
    ddim.set_timesteps(steps)
    return lambda e, t, x: ddim.step(e, int(t), x).pred_original_sample
