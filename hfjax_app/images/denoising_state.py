"""One picture on its way through the denoising steps."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from hfjax_app.errors import ModelUnavailable
from hfjax_app.images import noise
from hfjax_app.images.prompt_conditioning import Conditioning
from hfjax_app.images.request import ImageRequest
from hfjax_app.images.schedule import Schedule
from hfjax_app.images.sized_programs import SizedPrograms


@dataclass(eq=False)
class DenoisingState:
    """The state of one picture between two denoising steps.

    Attributes:
        seed: the picture's.
        arrays: latents, history and memory on the device; each step donates them and returns new ones.
        fixed: constant for the picture, see `Denoiser.__call__`.
    """

    seed: int
    arrays: dict[str, jax.Array]
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
        """The state before the first step.

        Args:
            request: has the picture to start from, the mask, strength, guidance, and the seed to stay near.
            schedule: of the request's steps.
            programs: for the request's size.
            seed: of the noise.
            given: the first noise, float32 of the latents' shape; None: the seed's.
            scale: pixels a side for each latent.
        """
        near = seed if request.variation_of is None else request.variation_of
        first, spread = noise.first_noise(near, programs.latent_shape)
        if request.variation_of is not None:
            other, _ = noise.first_noise(seed, programs.latent_shape)
            first = noise.between(first, other, request.variation)
        first = first if given is None else given
        if request.image is None:
            image = np.zeros_like(first)
            latents = first * np.float32(schedule.noise_scale)
        else:
            image = np.asarray(programs.encode(request.image, spread))
            latents = schedule.noising[0, 0] * image + schedule.noising[0, 1] * first
            if request.mask is not None and request.strength == 1:  # as in diffusers: starts from noise alone
                latents = first * np.float32(schedule.noise_scale)
        fixed = {
            "noise": first,
            "image": image,
            "mask": request.latent_mask(scale),
            "key": noise.key_of(near),
            "guidance": np.float32(max(1.0, request.guidance_scale)),  # as in diffusers, 1 and less are no guidance
        }
        return cls(seed=seed, arrays=programs.start(latents), fixed=programs.put(fixed))

    def advance(self, programs: SizedPrograms, conditioning: Conditioning, schedule: Schedule, step: int) -> jax.Array:
        """Make step number `step`, from 0, and wait for it: the predicted clean latents.

        Raises:
            ModelUnavailable: the latents are not finite; those of later steps would not be either.
        """
        self.arrays, clean = programs.denoise(self.arrays, conditioning, self.fixed, schedule, step)
        clean.copy_to_host_async()  # small; the copy overlaps with the step
        if not np.isfinite(np.asarray(clean)).all():
            raise ModelUnavailable(
                f"the image model made latents that are no numbers (NaN) in step {step + 1}; try another seed"
            )
        return clean
