"""A Stable Diffusion checkpoint as three compiled programs: encode the prompts, denoise by one step, decode.

The networks are transformers' CLIPTextModel and diffusers' UNet2DConditionModel and AutoencoderKL, unmodified, and read
by diffusers' own StableDiffusionPipeline. One picture at a time, at the checkpoint's own size. Does not cover Stable
Diffusion XL or 3, inpainting, adapters or the safety checker.
"""

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from diffusers import AutoencoderKL, StableDiffusionPipeline, UNet2DConditionModel
from transformers import CLIPTextModel

from hfjax_app.errors import ModelUnavailable
from hfjax_app.images.schedule import probe
from hfjax_app.runtime.module import pure_function, weights_of
from hfjax_app.runtime.programs import ProgramReport, Programs
from hfjax_app.runtime.weights import load_model

# Any number of steps that is long enough for a multistep scheduler to reach its full order.
_USUAL_STEPS = 20


def read(source: str | os.PathLike[str]) -> StableDiffusionPipeline:
    """The checkpoint's torch pipeline, in float32.

    Raises:
        ModelUnavailable: in one line: which model, why not, and what would help.
    """
    pipeline = load_model(
        StableDiffusionPipeline.from_pretrained,
        source,
        dtype=torch.float32,
        safety_checker=None,
        requires_safety_checker=False,
    )
    kinds = {"text_encoder": CLIPTextModel, "unet": UNet2DConditionModel, "vae": AutoencoderKL}
    for name, kind in kinds.items():
        if not isinstance(getattr(pipeline, name), kind):
            raise ModelUnavailable(f"model {os.fspath(source)!r}: its {name} is not a {kind.__name__}")
    config = pipeline.unet.config
    if config.addition_embed_type or config.class_embed_type or config.time_cond_proj_dim:
        raise ModelUnavailable(f"model {os.fspath(source)!r}: its UNet asks for more than a prompt and a timestep")
    if config.in_channels != pipeline.vae.config.latent_channels:
        raise ModelUnavailable(
            f"model {os.fspath(source)!r}: its UNet reads {config.in_channels} channels, and the latents have "
            f"{pipeline.vae.config.latent_channels}: not a text-to-image model"
        )
    return pipeline


class DiffusionPrograms:
    """The networks of a pipeline on the device, and their programs.

    Args:
        pipeline: as `read` makes it.
        on_report: called with each program's report.

    Raises:
        ModelUnavailable: the pipeline's scheduler can't run in a compiled program.

    Attributes:
        latent_shape: (1, channels, height, width) of the latents.
        size: (width, height) of the picture in pixels.
        token_limit: tokens of a prompt that the text encoder reads, special tokens included.
        max_train_steps: the most steps that the scheduler can be asked for.
        depth: how many pairs of (sample, model output) a denoising step looks at, see `schedule.py`.
    """

    def __init__(
        self, pipeline: StableDiffusionPipeline, on_report: Callable[[ProgramReport], None] = lambda report: None
    ):
        text_encoder, unet, vae = pipeline.text_encoder, pipeline.unet, pipeline.vae
        self.scheduler = pipeline.scheduler
        self.max_train_steps = self.scheduler.config.num_train_timesteps
        name = type(self.scheduler).__name__
        try:
            self.depth = probe(self.scheduler, min(_USUAL_STEPS, self.max_train_steps)).depth
        except Exception as error:  # NotLinear, or what a class that isn't meant for such a pipeline raises
            raise ModelUnavailable(
                f"{name} can't run in a compiled program: {error}; save the pipeline with DDIMScheduler (clip_sample "
                "false), PNDMScheduler, EulerDiscreteScheduler or DPMSolverMultistepScheduler"
            ) from error

        sample = unet.config.sample_size
        height, width = (sample, sample) if isinstance(sample, int) else sample
        self.latent_shape = (1, unet.config.in_channels, height, width)
        enlarged = 2 ** (len(vae.config.block_out_channels) - 1)
        self.size = (width * enlarged, height * enlarged)
        self._tokenizer = pipeline.tokenizer
        self.token_limit = min(self._tokenizer.model_max_length, text_encoder.config.max_position_embeddings)

        programs = Programs(on_report)
        self._text_weights = weights_of(text_encoder)
        self._unet_weights = weights_of(unet)
        # The encoder half turns pictures into latents, which is never asked for here.
        decoding = ("decoder.", "post_quant_conv.")
        self._vae_weights = {name: w for name, w in weights_of(vae).items() if name.startswith(decoding)}

        encode = pure_function(text_encoder, lambda model, ids: model(ids)[0])
        ids = np.zeros((2, self.token_limit), np.int32)
        self._encode = programs.compile("encode_prompts", encode, self._text_weights, ids)

        latents = jax.ShapeDtypeStruct(self.latent_shape, jnp.float32)
        scalar = jax.ShapeDtypeStruct((), jnp.float32)
        self._denoise = programs.compile(
            "denoise",
            _denoise_function(unet),
            self._unet_weights,
            latents,
            jax.ShapeDtypeStruct((self.depth - 1, 2, *self.latent_shape), jnp.float32),
            jax.ShapeDtypeStruct((2, self.token_limit, unet.config.cross_attention_dim), jnp.float32),
            scalar,
            scalar,
            jax.ShapeDtypeStruct((self.depth, 2, 2), jnp.float32),
            scalar,
            donate=(1, 2) if self.depth > 1 else (1,),
        )
        self._decode = programs.compile("decode_latents", _decode_function(vae), self._vae_weights, latents)

    def tokens(self, prompt: str) -> tuple[list[int], int]:
        """A prompt's ids, cut and padded to `token_limit`, and how many tokens it has uncut. Not thread-safe."""
        whole = self._tokenizer(prompt, truncation=False, verbose=False).input_ids
        ids = self._tokenizer(prompt, padding="max_length", max_length=self.token_limit, truncation=True).input_ids
        return ids, len(whole)

    def encode(self, negative: list[int], positive: list[int]) -> jax.Array:
        """The text encoder's states, float32 [2, token_limit, features]: the negative prompt's, then the prompt's."""
        return self._encode(self._text_weights, np.array([negative, positive], np.int32))

    def start(self, noise: np.ndarray) -> tuple[jax.Array, jax.Array]:
        """Latents (float32, `latent_shape`) and the empty history of a run, on the device."""
        history = np.zeros((self.depth - 1, 2, *self.latent_shape), np.float32)
        return jax.device_put(noise), jax.device_put(history)

    def denoise(
        self,
        latents: jax.Array,
        history: jax.Array,
        states: jax.Array,
        timestep: np.float32,
        input_scale: np.float32,
        coefficients: np.ndarray,
        guidance_scale: float,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """One step: (next latents, next history, predicted clean latents). `latents` and `history` are used up."""
        guidance = np.float32(guidance_scale)
        return self._denoise(
            self._unet_weights, latents, history, states, timestep, input_scale, coefficients, guidance
        )

    def decode(self, latents: jax.Array) -> np.ndarray:
        """Latents to pixels, float32 [height, width, 3], 0 to 1."""
        return np.asarray(self._decode(self._vae_weights, latents))


def _denoise_function(unet: UNet2DConditionModel) -> Callable[..., Any]:
    predict = pure_function(unet, lambda model, x, t, states: model(x, t, states, return_dict=False)[0])

    def denoise(
        weights: Any,
        latents: jax.Array,
        history: jax.Array,
        states: jax.Array,
        timestep: jax.Array,
        input_scale: jax.Array,
        coefficients: jax.Array,
        guidance_scale: jax.Array,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Classifier-free guidance (arXiv:2207.12598), then the scheduler's weighted sum, both as in diffusers.

        history: [depth - 1, (sample, output), *latent_shape], the newest pair first.
        """
        both = predict(weights, jnp.concatenate([latents, latents]) * input_scale, timestep, states)
        without, with_prompt = both[:1], both[1:]
        output = without + guidance_scale * (with_prompt - without)
        pairs = jnp.concatenate([jnp.stack([latents, output])[None], history])
        # A product and a sum, not a dot: accelerators round the operands of a dot to bfloat16.
        following, clean = (
            (coefficients[:, :, which, None, None, None, None] * pairs).sum((0, 1)) for which in range(2)
        )
        return following, pairs[:-1], clean

    return denoise


def _decode_function(vae: AutoencoderKL) -> Callable[..., Any]:
    decode = pure_function(vae, lambda model, latents: model.decode(latents, return_dict=False)[0])
    scaling = vae.config.scaling_factor

    def decode_latents(weights: Any, latents: jax.Array) -> jax.Array:
        pixels = decode(weights, latents / scaling)[0].transpose(1, 2, 0)
        return jnp.clip(pixels / 2 + 0.5, 0, 1)

    return decode_latents
