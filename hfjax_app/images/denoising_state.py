"""One picture on its way through the denoising steps."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from hfjax_app.errors import ModelUnavailable
from hfjax_app.images import noise
from hfjax_app.images.pipeline import SizedPrograms
from hfjax_app.images.prompt_conditioning import Conditioning
from hfjax_app.images.request import ImageRequest
from hfjax_app.images.schedule import Schedule


@dataclass(eq=False)
class DenoisingState:
    """One picture on its way: its state on the device, which each step uses up, and what stays the same."""

    seed: int
    state: dict[str, jax.Array]
    fixed: dict[str, Any]

    @classmethod
    def begin(
        cls,
        request: ImageRequest,
        schedule: Schedule,
        programs: SizedPrograms,
        seed: int,
        given: np.ndarray | None,
        scale: int,
    ) -> "DenoisingState":
        first, spread = noise.first_noise(seed, programs.latent_shape)
        first = first if given is None else given
        if request.image is None:
            image = np.zeros_like(first)
            latents = first * np.float32(schedule.noise_scale)
        else:
            image = np.asarray(programs.encode(request.image, spread))
            latents = schedule.noising[0, 0] * image + schedule.noising[0, 1] * first
            if request.mask is not None and request.strength == 1:  # as in diffusers: nothing of what is masked stays
                latents = first * np.float32(schedule.noise_scale)
        fixed = {
            "noise": first,
            "image": image,
            "mask": request.latent_mask(scale),
            "key": noise.key_of(seed),
            "guidance": np.float32(max(1.0, request.guidance_scale)),  # as in diffusers, less is none
        }
        return cls(seed=seed, state=programs.start(latents), fixed=programs.put(fixed))

    def advance(self, programs: SizedPrograms, told: Conditioning, schedule: Schedule, step: int) -> jax.Array:
        """Make one step, from 0, and wait for it: the predicted clean latents.

        Raises:
            ModelUnavailable: what the denoiser made is no number; no later step would be one.
        """
        self.state, clean = programs.denoise(self.state, told, self.fixed, schedule, step)
        clean.copy_to_host_async()  # small, and on its way when the step ends: to look at it is no second wait
        if not np.isfinite(np.asarray(clean)).all():
            raise ModelUnavailable(
                f"the image model made latents that are no numbers (NaN) in step {step + 1}; try another seed"
            )
        return clean
