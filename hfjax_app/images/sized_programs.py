"""The programs for pictures of one size: a denoising step, decoding, and encoding of a picture to start from.

Does not choose sizes and holds no weights: `pipeline.py` does.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from diffusers.models import AutoencoderKL

from hfjax_app.images.denoiser import Denoiser
from hfjax_app.images.prompt_conditioning import Conditioning
from hfjax_app.images.request import ImageRequest
from hfjax_app.images.schedule import Schedule
from hfjax_app.runtime.module import pure_function
from hfjax_app.runtime.program import Program
from hfjax_app.runtime.warm_up import ProgramSpec, run_on_zeros

if TYPE_CHECKING:
    from hfjax_app.images.pipeline import DiffusionPrograms


def neutral(size: tuple[int, int], guidance_scale: float) -> ImageRequest:
    """A request to compile with."""
    return ImageRequest("a", width=size[0], height=size[1], guidance_scale=guidance_scale)


class SizedPrograms:
    """The programs for pictures of one size; they must have joined before they are called.

    Attributes:
        size: (width, height) in pixels.
        latent_shape: (1, channels, height, width) of the latents.
    """

    def __init__(self, parts: "DiffusionPrograms", size: tuple[int, int], *, alone: bool):
        self._parts, self.size = parts, size
        self._decode: Program | None = None
        self._encode: Program | None = None
        self.latent_shape = (1, parts.channels, size[1] // parts.scale, size[0] // parts.scale)
        name = "" if size == parts.size else f"_{size[0]}x{size[1]}"
        latents = jax.ShapeDtypeStruct(self.latent_shape, jnp.float32)
        scalar = jax.ShapeDtypeStruct((), jnp.float32)
        depth = parts.samplers.depth
        state = {
            "latents": latents,
            "memory": latents,
            "history": jax.ShapeDtypeStruct((depth - 1, 2, *self.latent_shape), jnp.float32),
        }
        fixed = {
            "noise": latents,
            "image": latents,
            "mask": jax.ShapeDtypeStruct((1, 1, *self.latent_shape[2:]), jnp.float32),
            "key": jax.ShapeDtypeStruct((2,), jnp.uint32),
            "guidance": scalar,
        }
        numbers = {
            "timestep": scalar,
            "input_scale": scalar,
            "coefficients": jax.ShapeDtypeStruct((depth, 2, 3), jnp.float32),
            "extras": jax.ShapeDtypeStruct((2, 3), jnp.float32),
            "noising": jax.ShapeDtypeStruct((2,), jnp.float32),
            "step": jax.ShapeDtypeStruct((), jnp.int32),
        }
        self._denoisers = {}
        for guidance in (2.0, 1.0) if alone else (2.0,):
            conditioning = parts.reader.read(neutral(size, guidance))
            self._denoisers[conditioning.rows] = Denoiser(
                f"denoise{name}" if guidance > 1 else f"denoise_alone{name}",
                parts.mesh,
                parts.network,
                conditioning,
                state,
                fixed,
                numbers,
                parts.calls,
            )
        decoding = (parts.decoder_weights, latents)
        self._decode_spec = ProgramSpec(
            name=f"decode_latents{name}",
            function=_decode_function(parts),
            args=decoding,
            join=partial(self._join, "_decode", decoding),
            shardings=parts.everywhere,
        )
        encoding = (parts.encoder_weights, jax.ShapeDtypeStruct((size[1], size[0], 3), jnp.float32), latents)
        self._encode_spec = ProgramSpec(
            name=f"encode_picture{name}",
            function=_encode_function(parts),
            args=encoding,
            join=partial(self._join, "_encode", encoding),
            shardings=parts.everywhere,
        )

    def specs(self, *, general: bool = False) -> list[ProgramSpec]:
        """The programs: first those that draw from a prompt, which are general ones if `general`."""
        denoising = [spec for denoiser in self._denoisers.values() for spec in denoiser.specs]
        drawing = [replace(spec, general=general) for spec in (*denoising, self._decode_spec)]
        return [*drawing, self._encode_spec]

    def _join(self, attribute: str, arguments: tuple[Any, ...], program: Program) -> None:
        run_on_zeros(program, arguments)
        setattr(self, attribute, program)

    @property
    def can_draw(self) -> bool:
        """Whether the programs have joined that draw a picture from a prompt."""
        return all(denoiser.is_ready for denoiser in self._denoisers.values()) and self._decode is not None

    @property
    def can_encode(self) -> bool:
        """Whether the program has joined that reads a picture to start from."""
        return self._encode is not None

    @property
    def compile_seconds(self) -> float:
        """The programs' compile time, or the time without the cache; of those that have joined."""
        # Not the elapsed time: other models' programs may have been compiled first.
        names = {spec.name for spec in self.specs()}
        return sum(report.seconds + report.saved for report in self._parts.reports if report.name in names)

    def read(self, request: ImageRequest) -> Conditioning:
        """The conditioning for a completed request, on the device. A guidance scale of 1 or less means no guidance."""
        guidance = request.guidance_scale
        assert guidance is not None, "it is completed"
        if guidance > 1 or 1 not in self._denoisers:  # the guided program draws it
            request = replace(request, guidance_scale=max(guidance, 1.0 + 2**-10))
        conditioning = self._parts.reader.read(request)
        denoiser = self._denoisers[conditioning.rows]
        return replace(conditioning, arrays=self.put(denoiser.arranged(conditioning.arrays)))

    def put(self, arrays: Any) -> Any:
        """A pytree of arrays on the programs' devices, so that no step copies them again."""
        return jax.device_put(arrays, self._parts.everywhere)

    def start(self, latents: np.ndarray) -> dict[str, jax.Array]:
        """The state before the first step, on the device: latents (float32, `latent_shape`), history and memory."""
        history = np.zeros((self._parts.samplers.depth - 1, 2, *self.latent_shape), np.float32)
        state: dict[str, jax.Array] = self.put(
            {"latents": latents, "memory": np.zeros_like(latents), "history": history}
        )
        return state

    def denoise(
        self,
        state: dict[str, jax.Array],
        conditioning: Conditioning,
        fixed: dict[str, Any],
        schedule: Schedule,
        step: int,
    ) -> tuple[dict[str, jax.Array], jax.Array]:
        """One step: (next state, predicted clean latents). `state` is donated.

        Args:
            state: from the step before, or from `start`.
            conditioning: from `read`.
            fixed: constant for a picture: noise, image (its latents), mask (1 where to draw), key, guidance.
            schedule: from `samplers`.
            step: from 0.
        """
        numbers = {
            "timestep": schedule.timesteps[step],
            "input_scale": schedule.input_scales[step],
            "coefficients": schedule.coefficients[step],
            "extras": schedule.extras[step],
            "noising": schedule.noising[step + 1],
            "step": np.int32(step),
        }
        return self._denoisers[conditioning.rows](state, conditioning.arrays, fixed, numbers)

    def decode(self, latents: jax.Array) -> np.ndarray:
        """Latents to pixels, float32 [height, width, 3], 0 to 1."""
        assert self._decode is not None, "it has joined"
        return np.asarray(self._decode(self._parts.decoder_weights, latents))

    def encode(self, pixels: np.ndarray, noise: np.ndarray) -> jax.Array:
        """Pixels (float32 [height, width, 3], 0 to 1) to latents, sampled with `noise` from their distribution."""
        assert self._encode is not None, "it has joined"
        latents: jax.Array = self._encode(self._parts.encoder_weights, pixels, noise)
        return latents

    def texts(self) -> list[str]:
        """The denoising, decoding and encoding programs as XLA's text."""
        denoising = [text for denoiser in self._denoisers.values() for text in denoiser.texts()]
        return [*denoising, *(program.as_text() for program in (self._decode, self._encode) if program is not None)]


def _decode_function(parts: "DiffusionPrograms") -> Callable[..., Any]:
    decode = pure_function(parts.vae, lambda model, latents: model.decode(latents, return_dict=False)[0])
    scale, shift = _normalisation(parts.vae)

    def decode_latents(weights: Any, latents: jax.Array) -> jax.Array:
        latents = (latents / scale + shift).astype(parts.vae_dtype)
        decoded = decode(weights, latents)
        pixels = decoded[0].transpose(1, 2, 0).astype(jnp.float32)
        return jnp.clip(pixels / 2 + 0.5, 0, 1)

    return decode_latents


def _encode_function(parts: "DiffusionPrograms") -> Callable[..., Any]:
    encode = pure_function(parts.vae, lambda model, pixels: [(d := model.encode(pixels).latent_dist).mean, d.std])
    scale, shift = _normalisation(parts.vae)

    def encode_picture(weights: Any, pixels: jax.Array, noise: jax.Array) -> jax.Array:
        picture = (pixels * 2 - 1).transpose(2, 0, 1)[None].astype(parts.vae_dtype)
        encoded: list[jax.Array] = encode(weights, picture)
        mean, spread = (part.astype(jnp.float32) for part in encoded)
        return (mean + spread * noise - shift) * scale

    return encode_picture


def _normalisation(vae: AutoencoderKL) -> tuple[np.ndarray | float, np.ndarray | float]:
    """(scale, shift): the denoiser's latents are (the autoencoder's - shift) * scale, by the pipelines' formulas."""
    config = vae.config
    if config.get("latents_mean") is None or config.get("latents_std") is None:
        return config["scaling_factor"], config.get("shift_factor") or 0.0
    mean, std = (np.array(config[name], np.float32).reshape(1, -1, 1, 1) for name in ("latents_mean", "latents_std"))
    return config["scaling_factor"] / std, mean
