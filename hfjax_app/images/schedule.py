"""A diffusers scheduler as numbers that a compiled program takes as arguments.

diffusers' schedulers keep Python state and branch on it, so they can't be traced. But a sampler's step is linear: the
next sample is a weighted sum of the latest samples and model outputs, of fresh noise where the sampler is stochastic
(Euler ancestral, LCM), and of a sample that the scheduler keeps (UniPC's corrected one), with weights that depend on
the step alone (DDIM, arXiv:2010.02502, equation 12; multistep solvers add earlier outputs). The weights are found by
running the scheduler's own class on unit vectors, and checked on random ones. So steps follow diffusers, one program
runs any number of steps of any of its schedulers, and the latents stay on the device.

Samplers that clip or threshold (not linear), or draw noise without torch.randn, raise NotLinear.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from diffusers import DDIMScheduler
from torch.overrides import TorchFunctionMode

MAX_DEPTH = 6  # PNDM, the deepest of diffusers' usual schedulers, uses five pairs


class NotLinear(Exception):
    """The scheduler's steps are not weighted sums of a few samples and outputs; the message says why."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Timing:
    """How a scheduler is set for a picture.

    Attributes:
        arguments: of `set_timesteps`.
        left_out: times at the end that the pipeline's loop leaves out.
        start: steps at the beginning that are left out, to start from a noised picture.
    """

    arguments: Mapping[str, Any]
    left_out: int = 0
    start: int = 0

    @classmethod
    def of(cls, steps: int) -> "Timing":
        """As most pipelines do."""
        return cls(arguments={"num_inference_steps": steps})

    @property
    def _key(self) -> str:
        return repr((sorted(self.arguments.items()), self.left_out, self.start))

    def __hash__(self) -> int:  # arguments may be lists
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timing) and self._key == other._key


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """The numbers of N denoising steps.

    Attributes:
        noise_scale: factor of the unit normal noise that is the first sample, without a picture to start from.
        timesteps: float32 [N], the denoiser's timesteps.
        input_scales: float32 [N], factor of the sample at the denoiser's input.
        coefficients: float32 [N, depth, 2, 3]: step, age in steps, (sample, model output), (next sample, predicted
            clean sample, remembered sample). Age 0 is the step itself.
        extras: float32 [N, 2, 3]: step, (remembered sample, fresh unit normal noise), the same three results.
        noising: float32 [N + 1, 2]: factors of a clean sample and of unit normal noise whose sum is as noisy as a
            sample before each step; (1, 0) after the last one.
    """

    noise_scale: float
    timesteps: np.ndarray
    input_scales: np.ndarray
    coefficients: np.ndarray
    extras: np.ndarray
    noising: np.ndarray

    @property
    def steps(self) -> int:
        """The number of denoiser calls; some schedulers make one or two more than requested."""
        return len(self.timesteps)

    @property
    def depth(self) -> int:
        """Pairs of (sample, model output) that a step uses, its own included."""
        return int(self.coefficients.shape[1])

    def padded(self, depth: int) -> "Schedule":
        """The same schedule with zeros for older pairs, so that all schedules share a program.

        Raises:
            NotLinear: it uses more than `depth` pairs.
        """
        if self.depth > depth:
            raise NotLinear(f"it looks back {self.depth - 1} steps here, and {depth - 1} elsewhere")
        return replace(self, coefficients=np.pad(self.coefficients, [(0, 0), (0, depth - self.depth), (0, 0), (0, 0)]))


class GivenNoise(TorchFunctionMode):
    """While active in this thread, torch.randn returns the given values, one after the other."""

    def __init__(self, values: Iterator[torch.Tensor]):
        super().__init__()
        self._values = values

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.randn:
            return func(*args, **(kwargs or {}))
        value = next(self._values, None)
        if value is None:
            raise NotLinear("it draws noise more than once a step")
        return value.to((kwargs or {}).get("dtype"))


def probe(scheduler: Any, timing: Timing) -> Schedule:
    """The schedule of a diffusers scheduler. The scheduler is not changed.

    Args:
        scheduler: of any class; its configuration counts, its state does not.
        timing: the number of steps, and more where the pipeline sets more.

    Raises:
        NotLinear: see the module's docstring.
        Exception: the scheduler can't do this number of steps.
    """
    times = _timesteps(_fresh(scheduler, timing), timing)
    count = len(times)
    if not count or not np.isfinite([float(t) for t in times]).all():
        raise NotLinear("its times are no numbers")
    units = np.eye(4 * count).reshape(4, count, 4 * count)
    probed = _run_scheduler(scheduler, timing, *units)
    # from [step, result, 4 * count] to [step, given at step, (sample, output, noise, memory), result]
    weights = probed.results.reshape(count, 3, 4, count).transpose(0, 3, 2, 1)
    if not np.isfinite(weights).all() or not np.isfinite(probed.input_scales).all():
        raise NotLinear("its formulas divide by zero for this schedule")

    random = np.random.default_rng(0).standard_normal((4, count, 16)) * 3
    seen = _run_scheduler(scheduler, timing, *random).results
    expected = np.einsum("nasc,sav->ncv", weights, random)
    size = np.einsum("nasc,sav->ncv", np.abs(weights), np.abs(random))
    if not (np.abs(seen - expected) <= 1e-4 * (size + 1)).all():
        raise NotLinear("it clips or thresholds")

    pairs, extras = weights[:, :, :2], weights[:, :, [3, 2]]
    ages = [step - given for step, given in np.argwhere((pairs != 0).any((2, 3)))]
    depth = 1 + max(ages)
    if depth > MAX_DEPTH:
        raise NotLinear(f"it looks back {depth - 1} steps; at most {MAX_DEPTH - 1} are kept")
    if any(step != given for step, given in np.argwhere((extras != 0).any((2, 3)))):
        raise NotLinear("it keeps its noise for later steps")
    coefficients = np.zeros((count, depth, 2, 3), np.float32)
    for step in range(count):
        for age in range(min(depth, step + 1)):
            coefficients[step, age] = pairs[step, step - age]
    return Schedule(
        noise_scale=probed.noise_scale,
        timesteps=probed.timesteps.astype(np.float32),
        input_scales=probed.input_scales.astype(np.float32),
        coefficients=coefficients,
        extras=extras[range(count), range(count)].astype(np.float32),
        noising=probed.noising.astype(np.float32),
    )


def noise_levels(scheduler: Any, timing: Timing) -> tuple[np.ndarray, np.ndarray]:
    """Times in ascending order, and the logarithm of noise over signal in a sample at each; without infinite ones.

    Args:
        scheduler: of any class; it is not changed.
        timing: how many times.
    """
    fresh = _fresh(scheduler, timing)
    times = np.array([float(t) for t in fresh.timesteps])
    with np.errstate(divide="ignore"):
        levels = np.log(
            [noise / clean if clean else np.inf for clean, noise in (_noising(fresh, t) for t in fresh.timesteps)]
        )
    _, first = np.unique(times, return_index=True)  # in ascending order
    kept = first[np.isfinite(levels[first])]
    return times[kept], levels[kept]


def _fresh(scheduler: Any, timing: Timing) -> Any:
    """A new scheduler of the same class and configuration, set to a number of steps: schedulers have state."""
    fresh = type(scheduler).from_config(scheduler.config)
    fresh.set_timesteps(**timing.arguments)
    return fresh


def _timesteps(scheduler: Any, timing: Timing) -> list[torch.Tensor]:
    """The scheduler's timesteps of the steps that are made, without negative ones of "trailing" spacing.

    diffusers counts trailing timesteps down in floating point and, for 61 of 1000 steps, adds -1 after the last.
    """
    trailing = scheduler.config.get("timestep_spacing") == "trailing"
    first = timing.start * getattr(scheduler, "order", 1)
    last = len(scheduler.timesteps) - timing.left_out
    return [t for t in scheduler.timesteps[first:last] if t >= 0 or not trailing]


@dataclass(frozen=True, kw_only=True, eq=False)
class _SchedulerResults:
    """A scheduler's results for given values. Arrays are float64; other fields are as in Schedule.

    Attributes:
        results: [step, (next, clean, memory), values].
    """

    noise_scale: float
    timesteps: np.ndarray
    input_scales: np.ndarray
    noising: np.ndarray
    results: np.ndarray


def _run_scheduler(
    scheduler: Any,
    timing: Timing,
    samples: np.ndarray,
    outputs: np.ndarray,
    noises: np.ndarray,
    memories: np.ndarray,
) -> _SchedulerResults:
    """Run the scheduler with given samples, model outputs, noise and memories, each float64 [step, values]."""
    fresh = _fresh(scheduler, timing)
    schedule = _timesteps(fresh, timing)
    if hasattr(fresh, "set_begin_index"):
        fresh.set_begin_index(timing.start * getattr(fresh, "order", 1))
    clean = _clean_formula(scheduler, timing)
    remembers = hasattr(fresh, "last_sample")
    scales, noising, results = [], [_noising(fresh, schedule[0])], []
    for i, t in enumerate(schedule):
        x, e, z, m = (
            torch.from_numpy(values[i]).reshape(1, 1, 1, -1) for values in (samples, outputs, noises, memories)
        )
        largest = int(np.abs(samples[i]).argmax())
        scaled = fresh.scale_model_input(x, t) if hasattr(fresh, "scale_model_input") else x
        scales.append(scaled.flatten()[largest].item() / samples[i, largest])
        if remembers and i:
            fresh.last_sample = m
        with GivenNoise(iter([z])):
            result = fresh.step(e, t, x)
        predicted = getattr(result, "pred_original_sample", None)
        if predicted is None:
            predicted = getattr(result, "denoised", None)
        if predicted is None:
            predicted = clean(e, t, x) if clean else result.prev_sample
        memory = fresh.last_sample if remembers else torch.zeros_like(x)
        results.append(np.stack([r.double().flatten() for r in (result.prev_sample, predicted, memory)]))
        noising.append(_noising(fresh, schedule[i + 1]) if i + 1 < len(schedule) else (1.0, 0.0))
    return _SchedulerResults(
        noise_scale=float(getattr(fresh, "init_noise_sigma", 1.0)),
        timesteps=np.array([float(t) for t in schedule]),
        input_scales=np.array(scales),
        noising=np.array(noising),
        results=np.stack(results),
    )


def _noising(scheduler: Any, t: torch.Tensor) -> tuple[float, float]:
    """The factors of a clean sample and of noise in a sample before the step at `t`."""
    clean, noise = torch.eye(2, dtype=torch.float64).reshape(2, 1, 1, 1, 2)
    if hasattr(scheduler, "add_noise"):
        mixed = scheduler.add_noise(clean, noise, t.reshape(1))
    elif hasattr(scheduler, "scale_noise"):  # flow matching
        mixed = scheduler.scale_noise(clean, t.reshape(1), noise)
    else:
        return 0.0, 1.0  # nothing can be noised
    return tuple(mixed.flatten().tolist())


def _clean_formula(scheduler: Any, timing: Timing) -> Any:
    """The predicted clean sample for schedulers that don't return it: DDIM's formula, from diffusers' own class.

    None where the scheduler's samples are scaled differently (Karras et al.'s sigmas) or follow another process.
    """
    fresh = _fresh(scheduler, timing)
    kind = scheduler.config.get("prediction_type", "flow_prediction")
    if kind == "flow_prediction" and abs(sum(_noising(fresh, fresh.timesteps[0])) - 1) < 1e-4:
        return lambda e, t, x: x - _noising(fresh, t)[1] * e
    if float(getattr(fresh, "init_noise_sigma", 0)) != 1 or not hasattr(fresh, "alphas_cumprod"):
        return None
    ddim = DDIMScheduler.from_config(scheduler.config, clip_sample=False, thresholding=False)
    ddim.set_timesteps(timing.arguments.get("num_inference_steps") or len(fresh.timesteps))
    return lambda e, t, x: ddim.step(e, int(t), x).pred_original_sample
