"""What every rung of the image part is given: a pipeline, a prompt, noise, and how many steps to make."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hfjax_app.images.checkpoint import denoiser_name, read_whole, recommended
from hfjax_app.images.interface import Recommended
from hfjax_app.runtime.dtype_policy import default_dtype

PROMPT = "a red circle"

# Draws; calls its argument after each step. float32 [height, width, 3], from 0 to 1.
Run = Callable[[Callable[[], None]], np.ndarray]


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageTask:
    """Draw PROMPT in `steps` steps from `noise`, with the pipeline of `source`.

    Args:
        source: a folder or a hub id.
        steps: denoising steps.
        guidance_scale: how closely to follow the prompt.
        dtype: of the networks.
        noise: unit normal, float32 [1, channels, height, width].
        size: (width, height) in pixels.
    """

    source: str
    steps: int
    guidance_scale: float
    dtype: torch.dtype
    noise: np.ndarray
    size: tuple[int, int]

    @classmethod
    def of(cls, source: str, steps: int) -> "ImageTask":
        """The task of a pipeline.

        Raises:
            ModelUnavailable: there is none, or it can't be loaded.
        """
        advice: Recommended = recommended(source)
        pipeline: Any = read_whole(source)
        config = getattr(pipeline, denoiser_name(pipeline)).config
        side = config.sample_size
        noise = np.random.default_rng(0).standard_normal((1, config.in_channels, side, side), np.float32)
        pixels = side * 2 ** (len(pipeline.vae.config.block_out_channels) - 1)
        return cls(
            source=source,
            steps=steps,
            guidance_scale=advice.guidance_scale,
            dtype=default_dtype(),
            noise=noise,
            size=(pixels, pixels),
        )

    def load(self) -> Any:
        """diffusers' own pipeline with its weights, on the CPU."""
        pipeline: Any = read_whole(self.source)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline.to(self.dtype)
