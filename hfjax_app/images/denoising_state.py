"""One picture on its way through the denoising steps."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from hfjax_app.errors import ModelUnavailable
from hfjax_app.images import noise
from hfjax_app.images.generation_parameters import GenerationParameters
from hfjax_app.images.programs import SizedPrograms
from hfjax_app.images.prompt_conditioning import Conditioning
from hfjax_app.images.request import ImageRequest
from hfjax_app.images.schedule import Schedule


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawing:
    """A request on its way through the steps.

    Attributes:
        request: completed.
        schedule: of its steps.
        pixels: of the picture to start from, float32 [height, width, 3] from 0 to 1, or None.
        mask: in latents, True where to draw and False where to keep the picture, bool [height, width], or None.
        parameters: of its first picture.
        previews: whether its steps have previews.
    """

    request: ImageRequest
    schedule: Schedule
    pixels: np.ndarray | None
    mask: np.ndarray | None
    parameters: GenerationParameters
    previews: bool


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
    def begin(cls, drawing: Drawing, programs: SizedPrograms, seed: int) -> "DenoisingState":
        """The state before the first step.

        Args:
            drawing: what is drawn.
            programs: for the request's size.
            seed: of the noise.
        """
        request, schedule = drawing.request, drawing.schedule
        near = seed if request.variation_of is None else request.variation_of
        first, spread = noise.first_noise(near, programs.latent_shape)
        if request.variation_of is not None:
            other, _ = noise.first_noise(seed, programs.latent_shape)
            first = noise.between(first, other, request.variation)
        first = first if request.latents is None else request.latents
        mask = np.ones((1, 1, *programs.latent_shape[2:]), np.float32)
        if drawing.mask is not None:
            mask = drawing.mask[None, None].astype(np.float32)
        if drawing.pixels is None:
            image = np.zeros_like(first)
            latents = first * np.float32(schedule.noise_scale)
        else:
            image = np.asarray(programs.encode(drawing.pixels, spread))
            latents = schedule.noising[0, 0] * image + schedule.noising[0, 1] * first
            if drawing.mask is not None and request.strength == 1:  # as in diffusers: starts from noise alone
                latents = first * np.float32(schedule.noise_scale)
        fixed = {
            "noise": first,
            "image": image,
            "mask": mask,
            "key": noise.key_of(near),
            "guidance": np.float32(
                max(1.0, request.guidance_scale or 0)
            ),  # as in diffusers, 1 and less are no guidance
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
