"""The schedulers that a user can choose from: diffusers' classes with the checkpoint's configuration."""

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    DPMSolverSinglestepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    HeunDiscreteScheduler,
    LCMScheduler,
    TCDScheduler,
    UniPCMultistepScheduler,
)

from hfjax_app.errors import ModelUnavailable, RequestRejected
from hfjax_app.images.schedule import NotLinear, Schedule, Timing, noise_levels, probe
from hfjax_app.runtime.seams.diffusers import schedulers_of_stable_diffusion
from hfjax_app.validation import quoted

_log = logging.getLogger(__name__)
_USUAL_STEPS = 20
_FEW_STEPS = 8  # enough for a multistep scheduler to reach its full order
_MANY_STEPS = 250
# How the model was trained. Classes have other defaults for these.
_TRAINED = (
    *("beta_start", "beta_end", "beta_schedule", "trained_betas", "rescale_betas_zero_snr"),
    *("num_train_timesteps", "prediction_type"),
)
_CACHED = 256
_PLAIN, _KARRAS = {"use_karras_sigmas": False}, {"use_karras_sigmas": True}
_DPM: dict[str, Any] = {"algorithm_type": "dpmsolver++", "solver_order": 2}
_SDE: dict[str, Any] = {"algorithm_type": "sde-dpmsolver++", "solver_order": 2}
_ONE_STEP: dict[str, Any] = _SDE | {"lower_order_final": True}
# By the names that web UIs have for them; docs/api/schedulers/overview of diffusers has the table. LMS and DPM2 would
# fit too, but it takes seconds to find out their weights.
_CHOICES: dict[str, tuple[Any, dict[str, Any]]] = {
    "DDIM": (DDIMScheduler, {"clip_sample": False, "thresholding": False}),
    "Euler": (EulerDiscreteScheduler, _PLAIN),
    "Euler Karras": (EulerDiscreteScheduler, _KARRAS),
    "Euler ancestral": (EulerAncestralDiscreteScheduler, {}),
    "Heun": (HeunDiscreteScheduler, _PLAIN),
    "DPM++ 2M": (DPMSolverMultistepScheduler, _DPM | _PLAIN),
    "DPM++ 2M Karras": (DPMSolverMultistepScheduler, _DPM | _KARRAS),
    "DPM++ 2M SDE": (DPMSolverMultistepScheduler, _SDE | _PLAIN),
    "DPM++ 2M SDE Karras": (DPMSolverMultistepScheduler, _SDE | _KARRAS),
    "DPM++ SDE": (DPMSolverSinglestepScheduler, _ONE_STEP | _PLAIN),
    "DPM++ SDE Karras": (DPMSolverSinglestepScheduler, _ONE_STEP | _KARRAS),
    "UniPC": (UniPCMultistepScheduler, _PLAIN),
    "LCM": (LCMScheduler, {}),
}
# What a scheduler that can't run has in its place: itself without what is not linear, then others for the same model.
_LINEAR = {"clip_sample": False, "thresholding": False, "skip_prk_steps": True}
_IN_PLACE = ("DPM++ 2M", "Euler", "DDIM")
_LOG_NOISE_APART = 0.3  # of two schedulers for the same model, at the same time: more than interpolation makes


class Samplers:
    """The schedulers for one checkpoint, and their schedules.

    Args:
        scheduler: the checkpoint's own. It is the default, and is not changed. Where it can't run, the one that is most
            like it takes its place, and the log says so.
        timing: how the pipeline sets it for a number of steps, a size, and with a picture to start from its strength;
            None: by the number alone.

    Raises:
        ModelUnavailable: this scheduler can't run in a compiled program, and none can in its place; says why.

    Attributes:
        default: the name of the checkpoint's own scheduler, or its class's name where it is not a known one.
        names: every scheduler, the default first. They have the same noise at the same times as the default; LCM is
            included, though only models distilled for it draw well with it.
        max_steps: the most steps of a schedule.
        depth: the most pairs of (sample, model output) that one of the schedulers uses, see `schedule.py`.
        noises: whether the checkpoint's own can noise a picture to start from.
    """

    def __init__(
        self, scheduler: Any, timing: Callable[[int, tuple[int, int] | None, float | None], Timing] | None = None
    ):
        self._timing = timing or (lambda steps, *_: Timing.of(steps))
        scheduler, self.depth, own = _that_runs(scheduler, self._usual)
        self.noises = _noises(scheduler)
        self.default = _name_of(scheduler)
        self.max_steps: int = scheduler.config.num_train_timesteps
        self._schedulers = {self.default: scheduler}
        usual, few = (self._usual(min(steps, self.max_steps)) for steps in (_USUAL_STEPS, _FEW_STEPS))
        family = schedulers_of_stable_diffusion() | {LCMScheduler.__name__, TCDScheduler.__name__}
        for name, (choice, options) in _CHOICES.items() if type(scheduler).__name__ in family else ():
            if name == self.default:
                continue
            try:
                other = choice.from_config(_config_for(choice, scheduler) | options)
                depth, levels = probe(other, few).depth, noise_levels(other, usual)
            except Exception:  # it does not support the checkpoint's kind of prediction or of schedule
                continue
            if _same_process(own, levels):
                self._schedulers[name] = other
                self.depth = max(self.depth, depth)
        self._cached = functools.lru_cache(maxsize=_CACHED)(self._probed)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._schedulers)

    def _usual(self, steps: int) -> Timing:
        """For a number of steps; for the fewest where the pipeline refuses this one."""
        try:
            return self._timing(steps, None, None)
        except Exception:
            return self._timing(2, None, None)

    def schedule(
        self, name: str | None, steps: int, size: tuple[int, int] | None = None, strength: float | None = None
    ) -> Schedule:
        """The schedule of the named scheduler (None: the default).

        Args:
            name: one of `names`.
            steps: how many.
            size: of the picture; None: the pipeline's own.
            strength: how much of a picture to start from is replaced, which leaves out the first steps; None: there is
                no such picture.

        Raises:
            RequestRejected: there is no such scheduler, or it can't do this number of steps.
        """
        name = self.default if name is None else name
        if not isinstance(name, str) or name not in self._schedulers:
            raise RequestRejected(f"scheduler = {quoted(name)}: must be one of {', '.join(self.names)}")
        try:
            return self._cached(name, self._timing(steps, size, strength))
        except RequestRejected:
            raise
        except Exception as error:
            kind = type(self._schedulers[name]).__name__
            raise RequestRejected(f"steps = {steps}: {kind} can't do that many: {error}") from error

    def _probed(self, name: str, timing: Timing) -> Schedule:
        return probe(self._schedulers[name], timing).padded(self.depth)


def _that_runs(scheduler: Any, timing: Callable[[int], Timing]) -> tuple[Any, int, tuple[np.ndarray, np.ndarray]]:
    """A checkpoint's scheduler, or the one in its place; its depth, and its `noise_levels` of many steps."""
    config, kind = scheduler.config, type(scheduler)
    try:
        return scheduler, *_probed_levels(scheduler, timing)
    except Exception as error:  # NotLinear, or any error of a class for another kind of pipeline
        reason = error
    changes = {name: value for name, value in _LINEAR.items() if config.get(name, value) != value}
    candidates = [(f"{kind.__name__} with {_listed(changes)}", kind, changes)] if changes else []
    if "beta_schedule" in config:  # it says how the model was trained
        candidates += [(name, *_CHOICES[name]) for name in _IN_PLACE]
    for name, choice, options in candidates:
        try:
            other = choice.from_config(_config_for(choice, scheduler) | options)
            found = _probed_levels(other, timing)
        except Exception:  # it can't follow this configuration either
            continue
        _log.warning("%s can't run in a compiled program (%s): %s takes its place", kind.__name__, reason, name)
        return other, *found
    raise ModelUnavailable(
        f"{kind.__name__} can't run in a compiled program: {reason}; save the pipeline with DDIMScheduler (clip_sample "
        "false), PNDMScheduler, EulerDiscreteScheduler or DPMSolverMultistepScheduler"
    ) from reason


def _probed_levels(scheduler: Any, timing: Callable[[int], Timing]) -> tuple[int, tuple[np.ndarray, np.ndarray]]:
    most: int = scheduler.config.num_train_timesteps
    if not _noises(scheduler) and timing(2).arguments.keys() == {"num_inference_steps"}:
        raise NotLinear("it can't noise a picture, and the pipeline sets it as any other")
    # LCM and TCD can't make more steps than their teacher
    many = min(_MANY_STEPS, most, scheduler.config.get("original_inference_steps") or most)
    return probe(scheduler, timing(min(_USUAL_STEPS, most))).depth, noise_levels(scheduler, timing(many))


def _noises(scheduler: Any) -> bool:
    """Whether a scheduler can noise a picture to start from."""
    return hasattr(scheduler, "add_noise") or hasattr(scheduler, "scale_noise")


def _listed(options: dict[str, Any]) -> str:
    return " and ".join(f"{name} {str(value).lower()}" for name, value in options.items())


def _config_for(choice: Any, scheduler: Any) -> dict[str, Any]:
    """The part of a scheduler's configuration for `from_config` of another class.

    It has the values that were set, without the defaults of the scheduler's own class but for those of the training.
    Names that the other class lacks are left out: diffusers would log them at every probe.
    """
    defaults = set(scheduler.config.get("_use_default_values", ())) - set(_TRAINED)
    accepted = inspect.signature(choice).parameters.keys() - defaults
    return {name: value for name, value in scheduler.config.items() if name in accepted}


def _name_of(scheduler: Any) -> str:
    """The name of a checkpoint's own scheduler: among the choices of its class the one with its options."""
    kind, config = type(scheduler), scheduler.config
    named = [name for name, (choice, _) in _CHOICES.items() if choice is kind]

    def same(name: str) -> int:
        options = _CHOICES[name][1]
        return sum(config.get(option) == options.get(option) for option in ("use_karras_sigmas", "algorithm_type"))

    return max(named, key=same, default=kind.__name__)


def _same_process(own: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> bool:
    """Whether two schedulers are for the same model: at the same times the same noise, and no times of another scale.

    A model in Karras et al.'s formulation (EDM) has the logarithm of the noise as its time, and flow matching other
    shares of noise.

    Args:
        own: `noise_levels` of the checkpoint's scheduler, of many steps.
        other: of another one.
    """
    (times, noise), (other_times, other_noise) = own, other
    slack = 0.1 * (times[-1] - times[0])
    if abs(other_times[-1] - times[-1]) > slack or other_times[0] < times[0] - slack:
        return False
    shared = (other_times >= times[0]) & (other_times <= times[-1])
    apart = np.abs(np.interp(other_times, times, noise) - other_noise)[shared]
    return not (apart > _LOG_NOISE_APART).any()
