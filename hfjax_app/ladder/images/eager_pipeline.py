"""Rung 1: diffusers' pipeline, eager.

A pipeline is no torch module, but its networks are, so `pipeline.to("jax")` moves them all. Its scheduler is none: its
tensors must be moved one by one. Then the pipeline's own code runs unmodified, and JAX computes one operator at a time.
Some of torchax's operators (group norm) make a new function at each call, which XLA compiles again at every step.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torchax
from torchax import interop

from hfjax_app.ladder.images.task import PROMPT, ImageTask, Run


def on_jax(task: ImageTask) -> Any:
    """The pipeline with the tensors of its networks and its scheduler in JAX."""
    pipeline = task.load()
    with torchax.default_env():
        pipeline.to("jax")
        for name, value in vars(pipeline.scheduler).items():
            if isinstance(value, torch.Tensor):
                setattr(pipeline.scheduler, name, value.to("jax"))
    return pipeline


def drawing(pipeline: Any, task: ImageTask) -> Run:
    """A run that calls this pipeline."""

    def run(stepped: Callable[[], None]) -> np.ndarray:
        def after_step(_pipeline: Any, _step: int, _timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
            stepped()
            # A scheduler multiplies by float32 scalars. PyTorch keeps bfloat16 then; torchax goes on in float32.
            return {name: value.to(task.dtype) for name, value in values.items()}

        with torchax.default_env(), torch.no_grad():
            pictures = pipeline(
                PROMPT,
                num_inference_steps=task.steps,
                guidance_scale=task.guidance_scale,
                latents=torch.tensor(task.noise, dtype=task.dtype).to("jax"),
                output_type="pt",
                callback_on_step_end=after_step,
            ).images
        picture = interop.jax_view(pictures)[0].astype("float32").transpose(1, 2, 0)
        return np.asarray(picture)

    return run


def prepare(task: ImageTask) -> Run:
    return drawing(on_jax(task), task)
