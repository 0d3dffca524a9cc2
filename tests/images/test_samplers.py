"""The choice of schedulers for a checkpoint: each equals diffusers' with the checkpoint's configuration."""

from typing import Any

import numpy as np
import pytest
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    DPMSolverSinglestepScheduler,
    EDMDPMSolverMultistepScheduler,
    EDMEulerScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    HeunDiscreteScheduler,
    LCMScheduler,
    PNDMScheduler,
    SASolverScheduler,
    TCDScheduler,
    UniPCMultistepScheduler,
)

from hfjax_app.errors import RequestRejected
from hfjax_app.images.samplers import Samplers
from hfjax_app.images.schedule import Timing, probe

from .pipelines import V_PREDICTION

KARRAS = {"use_karras_sigmas": True}
SDE = {"algorithm_type": "sde-dpmsolver++"}
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "DDIM": (DDIMScheduler, {}),
    "Euler": (EulerDiscreteScheduler, {}),
    "Euler Karras": (EulerDiscreteScheduler, KARRAS),
    "Euler ancestral": (EulerAncestralDiscreteScheduler, {}),
    "Heun": (HeunDiscreteScheduler, {}),
    "DPM++ 2M": (DPMSolverMultistepScheduler, {}),
    "DPM++ 2M Karras": (DPMSolverMultistepScheduler, KARRAS),
    "DPM++ 2M SDE": (DPMSolverMultistepScheduler, SDE),
    "DPM++ 2M SDE Karras": (DPMSolverMultistepScheduler, SDE | KARRAS),
    "DPM++ SDE": (DPMSolverSinglestepScheduler, SDE | {"lower_order_final": True}),
    "DPM++ SDE Karras": (DPMSolverSinglestepScheduler, SDE | KARRAS | {"lower_order_final": True}),
    "UniPC": (UniPCMultistepScheduler, {}),
    "LCM": (LCMScheduler, {}),
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
    for name, (kind, options) in KINDS.items():
        got = samplers.schedule(name, 20)
        want = probe(kind.from_config(scheduler.config, **options), Timing.of(20)).padded(samplers.depth)
        assert got.noise_scale == want.noise_scale, name
        for field in ("timesteps", "input_scales", "coefficients", "extras", "noising"):
            np.testing.assert_array_equal(getattr(got, field), getattr(want, field), f"{name}: {field}")
    assert samplers.schedule("Euler", 20).timesteps[0] == (999 if own == "PNDM" else 951)


SVD = {"timestep_type": "continuous", "sigma_min": 0.002, "sigma_max": 700.0, "prediction_type": "v_prediction"}


@pytest.mark.parametrize(
    "own",
    [
        EDMEulerScheduler(),
        EDMDPMSolverMultistepScheduler(),
        EulerDiscreteScheduler(**SVD),
        FlowMatchEulerDiscreteScheduler(),
    ],
    ids=lambda own: type(own).__name__,
)
def test_only_schedulers_for_the_same_process_are_offered(own: Any) -> None:
    """Playground v2.5 was offered schedulers that start from noise of another size and tell times of another scale."""
    samplers = Samplers(own)
    start = samplers.schedule(None, 20)
    for name in samplers.names:
        assert samplers.schedule(name, 20).timesteps[0] == pytest.approx(start.timesteps[0], abs=0.01)
    assert len(samplers.names) == 1


def test_all_have_the_noise_that_the_model_was_trained_with() -> None:
    """Classes have other defaults, and betas that a checkpoint's file does not set were those of each class. Where a
    class can't have its betas, such as those without signal in the last step, it is not offered."""
    samplers = Samplers(DPMSolverMultistepScheduler())  # as PixArt's
    assert set(KINDS) <= set(samplers.names)
    last = {name: samplers.schedule(name, 20).noising[0] for name in ("DPM++ 2M", "Heun", "Euler")}
    for clean, noise in last.values():
        assert noise / clean == pytest.approx(last["DPM++ 2M"][1] / last["DPM++ 2M"][0], rel=0.01)
    no_signal = Samplers(DDIMScheduler(**V_PREDICTION))
    assert not {"Heun", "DPM++ SDE"} & set(no_signal.names)
    assert {"Euler", "DPM++ 2M Karras"} <= set(no_signal.names)


def test_a_checkpoint_s_own_scheduler_has_its_usual_name() -> None:
    """A checkpoint with Karras' noise offered it as the plain scheduler."""
    samplers = Samplers(DPMSolverMultistepScheduler.from_config(STABLE_DIFFUSION, **SDE, **KARRAS))
    assert samplers.default == "DPM++ 2M SDE Karras"
    assert "DPM++ 2M" in samplers.names
    assert samplers.schedule("Euler", 9).timesteps[1] != samplers.schedule("Euler Karras", 9).timesteps[1]


def test_tcd_is_taken() -> None:
    """It was refused: it was asked for more steps than its teacher has."""
    own = TCDScheduler.from_config(STABLE_DIFFUSION)
    samplers = Samplers(own)
    assert samplers.names[0] == "TCDScheduler"
    assert {"LCM", "DPM++ 2M"} <= set(samplers.names)
    got, want = samplers.schedule(None, 8), probe(own, Timing.of(8))
    np.testing.assert_array_equal(got.coefficients[:, : want.depth], want.coefficients)
    assert got.extras[:-1, 1, 0].all(), "its steps but the last add noise"
    with pytest.raises(RequestRejected, match="steps = 51: TCDScheduler can't do that many"):
        samplers.schedule(None, 51)


@pytest.mark.parametrize(
    ("own", "instead", "changed"),
    [
        (DDIMScheduler(thresholding=True), "DDIM", {"thresholding": False, "clip_sample": False}),
        (DDIMScheduler(), "DDIM", {"clip_sample": False}),
        (PNDMScheduler(), "PNDMScheduler", {"skip_prk_steps": True}),
        (SASolverScheduler(), "DPM++ 2M", {"algorithm_type": "dpmsolver++"}),
    ],
    ids=["thresholding", "clipping", "Runge-Kutta", "noise that is kept"],
)
def test_a_scheduler_that_can_not_run_is_replaced(
    own: Any, instead: str, changed: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """With the betas that the checkpoint was trained with, and a line in the log."""
    samplers = Samplers(own)
    assert samplers.default == instead
    taken = samplers._schedulers[instead].config
    assert {name: taken[name] for name in changed} == changed
    assert (taken["beta_start"], taken["beta_schedule"]) == (own.config["beta_start"], own.config["beta_schedule"])
    assert f"{type(own).__name__} can't run in a compiled program" in caplog.text
    assert "takes its place" in caplog.text
