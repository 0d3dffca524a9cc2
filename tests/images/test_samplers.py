"""The choice of schedulers for a checkpoint: each equals diffusers' with the checkpoint's configuration."""

from typing import Any

import numpy as np
import pytest
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    LCMScheduler,
    PNDMScheduler,
    UniPCMultistepScheduler,
)

from hfjax_app.images.samplers import Samplers
from hfjax_app.images.schedule import probe

KINDS = {
    "DDIM": DDIMScheduler,
    "Euler": EulerDiscreteScheduler,
    "Euler ancestral": EulerAncestralDiscreteScheduler,
    "DPM++ 2M": DPMSolverMultistepScheduler,
    "UniPC": UniPCMultistepScheduler,
    "LCM": LCMScheduler,
}
# As in checkpoints: Stable Diffusion 1.5's, and XL's with all values set.
STABLE_DIFFUSION = {
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "clip_sample": False,
    "num_train_timesteps": 1000,
    "set_alpha_to_one": False,
    "skip_prk_steps": True,
    "steps_offset": 1,
    "trained_betas": None,
}
OWN = {
    "PNDM": lambda: PNDMScheduler.from_config(STABLE_DIFFUSION),
    "Euler": lambda: EulerDiscreteScheduler.from_config(
        {**STABLE_DIFFUSION, "timestep_spacing": "leading", "use_karras_sigmas": False, "interpolation_type": "linear"}
    ),
}


@pytest.mark.parametrize("own", OWN)
def test_every_choice_is_what_diffusers_makes_of_the_configuration(own: str) -> None:
    """Values that the checkpoint's file did not set were passed on as its own class's defaults: the first of 20 steps
    of Euler with Stable Diffusion 1.5 had timestep 951, in diffusers 999."""
    scheduler: Any = OWN[own]()
    samplers = Samplers(scheduler)
    assert set(KINDS) <= set(samplers.names)
    for name, kind in KINDS.items():
        got, want = samplers.schedule(name, 20), probe(kind.from_config(scheduler.config), 20).padded(samplers.depth)
        assert got.noise_scale == want.noise_scale, name
        for field in ("timesteps", "input_scales", "coefficients", "extras", "noising"):
            np.testing.assert_array_equal(getattr(got, field), getattr(want, field), f"{name}: {field}")
    assert samplers.schedule("Euler", 20).timesteps[0] == (999 if own == "PNDM" else 951)
