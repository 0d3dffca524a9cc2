"""The rungs of a picture, from the bottom.

A rung is a function of the task. It does what is done once, and returns a function that draws the picture and calls its
argument after each denoising step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch
import torchax
from torchax import interop
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling
from transformers.utils import ModelOutput

from hfjax_app.images import ImageGenerator, ImageRequest, ImageStep
from hfjax_app.images.checkpoint import denoiser_name, read_whole, recommended, text_encoder_names
from hfjax_app.runtime.dtype_policy import default_dtype

PROMPT = "a red circle"
_STATIC = ("return_dict", "output_hidden_states")

# Draws; calls its argument after each step. float32 [height, width, 3], from 0 to 1.
PictureRun = Callable[[Callable[[], None]], np.ndarray]


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
        guidance_scale = recommended(source).guidance_scale
        pipeline: Any = read_whole(source)
        config = getattr(pipeline, denoiser_name(pipeline)).config
        side = config.sample_size
        noise = np.random.default_rng(0).standard_normal((1, config.in_channels, side, side), np.float32)
        pixels = side * 2 ** (len(pipeline.vae.config.block_out_channels) - 1)
        return cls(
            source=source,
            steps=steps,
            guidance_scale=guidance_scale,
            dtype=default_dtype(),
            noise=noise,
            size=(pixels, pixels),
        )

    def load(self) -> Any:
        """diffusers' own pipeline with its weights, on the CPU."""
        pipeline: Any = read_whole(self.source)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline.to(self.dtype)


def eager_pipeline(task: ImageTask) -> PictureRun:
    """Rung 1: diffusers' pipeline, eager.

    A pipeline is no torch module, but its networks are, so `pipeline.to("jax")` moves them all. Its scheduler is none:
    its tensors must be moved one by one. Then the pipeline's own code runs unmodified, and JAX computes one operator at
    a time. Some of torchax's operators (group norm) make a new function at each call, which XLA compiles again at every
    step.
    """
    return _drawing(_on_jax(task), task)


def compiled_networks(task: ImageTask) -> PictureRun:
    """Rung 2: the UNet and the text encoder compiled.

    `torchax.compile` puts a module with a compiled forward in the place of another, and the pipeline does not notice.
    Two things are needed. Options that the forward's Python code branches on, such as `return_dict`, are static: they
    belong to the program and not to its data. And the classes of results must be pytrees, which JAX takes apart into
    arrays.
    """
    pipeline = _on_jax(task)
    _compile_networks(pipeline)
    return _drawing(pipeline, task)


def compiled_decoder(task: ImageTask) -> PictureRun:
    """Rung 3: the VAE's decoder compiled too.

    `torchax.compile` compiles a module's forward, and a pipeline never calls the VAE's: it calls `decode`. Without
    `methods_to_compile` the largest picture of all, the one of the last layers, is computed one operator at a time.
    """
    pipeline = _on_jax(task)
    _compile_networks(pipeline)
    options = torchax.CompileOptions(methods_to_compile=["decode"], jax_jit_kwargs={"static_argnames": _STATIC})
    with torchax.default_env():
        pipeline.vae = torchax.compile(pipeline.vae, options)
    return _drawing(pipeline, task)


def this_app(task: ImageTask) -> PictureRun:
    """Rung 4: this app's step.

    Between two calls of the UNet a pipeline still computes guidance and the scheduler's formula one operator at a time.
    Here they are in the program as well: a scheduler is a table of weights (`images/schedule.py`), so steps, guidance
    and scheduler are data, and no choice of them compiles anything. All programs are compiled before the first picture.
    """
    generator = ImageGenerator.from_pretrained(task.source)

    def run(stepped: Callable[[], None]) -> np.ndarray:
        width, height = task.size
        request = ImageRequest(
            PROMPT,
            steps=task.steps,
            guidance_scale=task.guidance_scale,
            width=width,
            height=height,
            latents=task.noise,
        )
        pixels = None
        for moment in generator.generate(request):
            if isinstance(moment, ImageStep):
                stepped()
                pixels = moment.pictures[0].pixels
        assert pixels is not None, "the last step has pixels"
        return pixels

    return run


def _on_jax(task: ImageTask) -> Any:
    """The pipeline with the tensors of its networks and its scheduler in JAX."""
    pipeline = task.load()
    with torchax.default_env():
        pipeline.to("jax")
        for name, value in vars(pipeline.scheduler).items():
            if isinstance(value, torch.Tensor):
                setattr(pipeline.scheduler, name, value.to("jax"))
    return pipeline


def _drawing(pipeline: Any, task: ImageTask) -> PictureRun:
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


def _compile_networks(pipeline: Any) -> None:
    for kind in (BaseModelOutput, BaseModelOutputWithPooling):
        if jax.tree_util.all_leaves([kind()]):  # a class that JAX doesn't know is a leaf
            _register(kind)
    options = torchax.CompileOptions(jax_jit_kwargs={"static_argnames": _STATIC})
    with torchax.default_env():
        for name in (denoiser_name(pipeline), *text_encoder_names(pipeline)):
            setattr(pipeline, name, torchax.compile(getattr(pipeline, name), options))


def _register(kind: type[ModelOutput]) -> None:
    """Tell JAX how a result is taken apart and put together again."""
    jax.tree_util.register_pytree_node(
        kind,
        lambda output: (tuple(output.values()), tuple(output.keys())),
        lambda names, values: kind(**dict(zip(names, values, strict=True))),
    )
