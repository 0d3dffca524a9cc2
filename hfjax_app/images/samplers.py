"""The schedulers that a user can choose from: diffusers' classes with the checkpoint's configuration."""

import functools
import inspect
from typing import Any

from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    LCMScheduler,
    UniPCMultistepScheduler,
)
from diffusers.schedulers import KarrasDiffusionSchedulers

from hfjax_app.errors import ModelUnavailable, RequestRejected
from hfjax_app.images.schedule import Schedule, probe

# Enough steps for a multistep scheduler to reach its full order.
_USUAL_STEPS = 20
_CACHED = 256
_CHOICES: dict[str, tuple[Any, dict[str, Any]]] = {
    "DDIM": (DDIMScheduler, {"clip_sample": False, "thresholding": False}),
    "Euler": (EulerDiscreteScheduler, {}),
    "Euler ancestral": (EulerAncestralDiscreteScheduler, {}),
    "DPM++ 2M": (DPMSolverMultistepScheduler, {"algorithm_type": "dpmsolver++", "solver_order": 2}),
    "UniPC": (UniPCMultistepScheduler, {}),
    "LCM": (LCMScheduler, {}),
}
_NAMES = {kind: name for name, (kind, _) in _CHOICES.items()}


class Samplers:
    """The schedulers for one checkpoint, and their schedules.

    Args:
        scheduler: the checkpoint's own. It is the default, and is not changed.

    Raises:
        ModelUnavailable: this scheduler can't run in a compiled program; says why.

    Attributes:
        default: the name of the checkpoint's own scheduler, or its class's name where it is not a known one.
        names: every scheduler, the default first. They are for the same kind of diffusion; LCM is included, though only
            models distilled for it draw well with it.
        max_steps: the most steps of a schedule.
        depth: the most pairs of (sample, model output) that one of the schedulers uses, see `schedule.py`.
    """

    def __init__(self, scheduler: Any):
        kind = type(scheduler)
        self.default = _NAMES.get(kind, kind.__name__)
        self.max_steps: int = scheduler.config.num_train_timesteps
        self._schedulers = {self.default: scheduler}
        usual = min(_USUAL_STEPS, self.max_steps)
        try:
            self.depth = probe(scheduler, usual).depth
        except Exception as error:  # NotLinear, or any error of a class for another kind of pipeline
            raise ModelUnavailable(
                f"{kind.__name__} can't run in a compiled program: {error}; save the pipeline with DDIMScheduler "
                "(clip_sample false), PNDMScheduler, EulerDiscreteScheduler or DPMSolverMultistepScheduler"
            ) from error
        family = {member.name for member in KarrasDiffusionSchedulers} | {LCMScheduler.__name__}
        for name, (choice, options) in _CHOICES.items() if kind.__name__ in family else ():
            if name == self.default:
                continue
            try:
                other = choice.from_config(_config_for(choice, scheduler) | options)
                depth = probe(other, usual).depth
            except Exception:  # it does not support the checkpoint's kind of prediction or of schedule
                continue
            self._schedulers[name] = other
            self.depth = max(self.depth, depth)
        self._cached = functools.lru_cache(maxsize=_CACHED)(self._probed)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._schedulers)

    def schedule(self, name: str | None, steps: int, start: int = 0) -> Schedule:
        """The schedule of the named scheduler (None: the default), without its first `start` steps.

        Raises:
            RequestRejected: there is no such scheduler, or it can't do this number of steps.
        """
        name = self.default if name is None else name
        if not isinstance(name, str) or name not in self._schedulers:
            raise RequestRejected(f"scheduler = {name!r}: must be one of {', '.join(self.names)}")
        try:
            return self._cached(name, steps, start)
        except Exception as error:
            kind = type(self._schedulers[name]).__name__
            raise RequestRejected(f"steps = {steps}: {kind} can't do that many: {error}") from error

    def _probed(self, name: str, steps: int, start: int) -> Schedule:
        return probe(self._schedulers[name], steps, start).padded(self.depth)


def _config_for(choice: Any, scheduler: Any) -> dict[str, Any]:
    """The part of a scheduler's configuration for `from_config` of another class.

    It has the values that were set, without the defaults of the scheduler's own class. Names that the other class
    lacks are left out: diffusers would log them at every probe.
    """
    accepted = inspect.signature(choice).parameters.keys() - set(scheduler.config.get("_use_default_values", ()))
    return {name: value for name, value in scheduler.config.items() if name in accepted}
