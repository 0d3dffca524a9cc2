"""A text-to-image pipeline as compiled programs: read the prompts, encode a picture, make one denoising step, decode.

The networks are transformers' and diffusers' own, unmodified. `prompt_conditioning.py` prepares the denoiser's
arguments, and `denoiser.py` makes a step. A program takes one picture: a guidance pair keeps the arithmetic units busy.
Pictures that are drawn together alternate in the same programs, and equal those drawn alone to the last bit. Where
there are several devices, two of them share a guidance pair; each holds all weights and computes everything else.
Each size has its own programs.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from diffusers.models import AutoencoderKL

from hfjax_app.errors import RequestRejected
from hfjax_app.images.checkpoint import Pipeline, denoiser_name
from hfjax_app.images.denoiser import Denoiser, Network
from hfjax_app.images.networks import adapted_weights
from hfjax_app.images.prompt_conditioning import Conditioning, PromptReader
from hfjax_app.images.samplers import Samplers
from hfjax_app.images.schedule import Schedule
from hfjax_app.limits import IMAGE_MAX_SIDE, IMAGE_WARM_SIZES
from hfjax_app.runtime import tracing_lock
from hfjax_app.runtime.bundle import Bundle
from hfjax_app.runtime.checkpoints.hub import Checkpoint
from hfjax_app.runtime.mesh import pair_mesh, replicated
from hfjax_app.runtime.module import pure_function
from hfjax_app.runtime.parallel_calls import Calls
from hfjax_app.runtime.programs import ProgramReport, Programs, argument_bytes
from hfjax_app.runtime.transforms import calls_at_once

SIZE_STEP = 8
MOST_PIXELS = 4  # times the pixels of the checkpoint's own size
_NEUTRAL = "a"  # a prompt to compile with


class DiffusionPrograms:
    """The networks of a pipeline on the device, and their programs.

    Args:
        pipeline: on the CPU; it is not changed.
        on_report: called with each program's report.
        alone: whether to compile another program for guidance of 1 and less, which costs half as much.
        programs: compiles; None: for the first two devices of this process, or the only one.
        dtype: of the networks' weights and computation; latents, guidance, noise and the schedulers' sums are float32.
            As in diffusers, an autoencoder that overflows float16 (`force_upcast`) is float32 then.
        checkpoint: the weight files, see `checkpoint.fetch_weights`; None: the weights are in the pipeline.
        bundle: programs that another process compiled, where `programs` is None; None: none are kept.

    Raises:
        ModelUnavailable: the pipeline's scheduler can't run in a compiled program, or its files can't be read.

    Attributes:
        size: (width, height) in pixels of the pictures that the checkpoint was trained for.
        samplers: the schedulers that may be chosen.
        reader: prompts -> the denoiser's conditioning.
        dtype: of the denoiser's and the text encoders' weights.
        vae_dtype: of the autoencoder's.
        network: the denoiser.
        calls: runs calls in parallel where that is faster on the device.
        vae: the autoencoder, adapted to the layout of its weights.
        everywhere: the sharding of replicated arrays; None without a mesh.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        on_report: Callable[[ProgramReport], None] = lambda report: None,
        *,
        alone: bool = False,
        programs: Programs | None = None,
        dtype: Any = jnp.float32,
        checkpoint: Checkpoint | None = None,
        bundle: Bundle | None = None,
    ):
        self.samplers = Samplers(pipeline.scheduler)
        self._programs = Programs(on_report, pair_mesh(), bundle=bundle) if programs is None else programs
        self.everywhere = None if self._programs.mesh is None else replicated(self._programs.mesh)
        self.reader = PromptReader(pipeline, self._programs, dtype, checkpoint)
        denoiser = denoiser_name(pipeline)
        module = getattr(pipeline, denoiser)
        self.dtype = jnp.dtype(dtype)
        overflows = self.dtype == jnp.float16 and pipeline.vae.config["force_upcast"]
        self.vae_dtype = jnp.dtype(jnp.float32) if overflows else self.dtype
        weights, adapted = adapted_weights(self._programs, module, self.dtype, checkpoint and checkpoint.part(denoiser))
        self.network = Network(adapted, weights, self.dtype, self.reader, self._programs.mesh)
        self.calls = Calls("image-call", calls_at_once(self._programs.mesh))
        vae_weights, self.vae = adapted_weights(
            self._programs, pipeline.vae, self.vae_dtype, checkpoint and checkpoint.part("vae")
        )
        decoding = ("decoder.", "post_quant_conv.")
        self.decoder_weights = {name: w for name, w in vae_weights.items() if name.startswith(decoding)}
        self.encoder_weights = {name: w for name, w in vae_weights.items() if not name.startswith(decoding)}
        self.channels: int = self.vae.config["latent_channels"]
        self.scale: int = 2 ** (len(self.vae.config["block_out_channels"]) - 1)
        # pixels a side of the denoiser's smallest unit: transformers read patches of latents
        self._patch = self.scale * (module.config.get("patch_size") or 1)
        sample = module.config.sample_size
        height, width = (sample, sample) if isinstance(sample, int) else sample
        self.size = (width * self.scale, height * self.scale)
        self.rows_guided = self.reader.read(_NEUTRAL, "", 2.0, self.size).rows
        self._alone = alone and self.rows_guided == 2
        self._sized: dict[tuple[int, int], SizedPrograms] = {}
        self._kept: set[tuple[int, int]] = set()
        self._asked_at: dict[tuple[int, int], float] = {}
        self._compiling = threading.Lock()
        self.sized(self.size, keep=True)

    @property
    def devices(self) -> int:
        """The number of devices that a program runs on."""
        return 1 if self._programs.mesh is None else self._programs.mesh.size

    @property
    def device(self) -> str:
        """The devices that the programs run on, in words: a device's kind, or "2 x" and the kind."""
        mesh = self._programs.mesh
        kind = (jax.local_devices() if mesh is None else mesh.local_devices)[0].device_kind
        return kind if self.devices == 1 else f"{self.devices} x {kind}"

    @property
    def warm_sizes(self) -> tuple[tuple[int, int], ...]:
        """The sizes whose programs are compiled, the checkpoint's own first."""
        return tuple(self._sized)

    @property
    def argument_bytes(self) -> int:
        """Bytes of all networks' weights and a step's arguments on the device, by the compiler's figures."""
        sizes = [sized.argument_bytes for sized in self._sized.values()]
        largest: list[int] = [max(network) for network in zip(*sizes, strict=True)]
        return self.reader.argument_bytes + sum(largest)

    def checked_size(self, width: object, height: object) -> tuple[int, int]:
        """(width, height); None stands for the checkpoint's own.

        Raises:
            RequestRejected: not a whole number, not a multiple of the model's unit, too small or too large.
        """
        given = {"width": width, "height": height}
        own = dict(zip(given, self.size, strict=True))
        least = min(32, *self.size)
        for name, value in given.items():
            if value is None:
                continue
            if type(value) is not int or not least <= value <= IMAGE_MAX_SIDE or value % SIZE_STEP:
                raise RequestRejected(
                    f"{name} = {value!r}: must be a multiple of {SIZE_STEP} from {least} to {IMAGE_MAX_SIDE}"
                )
            own[name] = value
        wide, tall = own.values()
        limit = MOST_PIXELS * self.size[0] * self.size[1]
        if wide * tall > limit:
            raise RequestRejected(f"size = {wide} x {tall}: at most {limit:,} pixels with this model")
        if wide % self._patch or tall % self._patch:
            raise RequestRejected(f"size = {wide} x {tall}: must be multiples of {self._patch} with this model")
        return wide, tall

    def compile_seconds(self, size: tuple[int, int]) -> float:
        """The estimated compile time of a size's programs, from the first size's; 0 if they are warm."""
        return 0.0 if size in self._sized else self.sized(self.size).compile_seconds

    def sized(self, size: tuple[int, int], *, keep: bool = False) -> "SizedPrograms":
        """The programs for one size, compiled now unless they are warm. Thread-safe.

        Args:
            size: (width, height), checked.
            keep: never drop them. Of the other sizes, the IMAGE_WARM_SIZES that were used last are kept.
        """
        if found := self._sized.get(size):
            self._asked_at[size] = time.monotonic()
            return found
        with self._compiling, tracing_lock.hold():
            if size not in self._sized:
                self._sized[size] = SizedPrograms(self, self._programs, size, alone=self._alone)
                self._asked_at[size] = time.monotonic()
                if keep:
                    self._kept.add(size)
                passing = sorted(self._sized.keys() - self._kept, key=self._asked_at.__getitem__)
                for other in passing[:-IMAGE_WARM_SIZES]:
                    self._sized.pop(other)
            return self._sized[size]


class SizedPrograms:
    """The programs for pictures of one size.

    Attributes:
        size: (width, height) in pixels.
        latent_shape: (1, channels, height, width) of the latents.
        compile_seconds: the programs' compile time, or the time without the cache.
    """

    def __init__(self, parts: DiffusionPrograms, programs: Programs, size: tuple[int, int], *, alone: bool):
        self._parts, self.size = parts, size
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
        before = len(programs.reports)
        with programs.together():
            for guidance in (2.0, 1.0) if alone else (2.0,):
                conditioning = parts.reader.read(_NEUTRAL, "", guidance, size)
                self._denoisers[conditioning.rows] = Denoiser(
                    f"denoise{name}" if guidance > 1 else f"denoise_alone{name}",
                    programs,
                    parts.network,
                    conditioning,
                    state,
                    fixed,
                    numbers,
                    parts.calls,
                )
            self._decode = programs.compile(
                f"decode_latents{name}",
                _decode_function(parts),
                parts.decoder_weights,
                latents,
                shardings=parts.everywhere,
            )
            pixels = jax.ShapeDtypeStruct((size[1], size[0], 3), jnp.float32)
            self._encode = programs.compile(
                f"encode_picture{name}",
                _encode_function(parts),
                parts.encoder_weights,
                pixels,
                latents,
                shardings=parts.everywhere,
            )
        # Not the elapsed time: other models' programs may have been compiled first.
        self.compile_seconds = sum(report.seconds + report.saved for report in programs.reports[before:])

    def read(self, prompt: str, negative_prompt: str, guidance_scale: float) -> Conditioning:
        """The conditioning for the prompts, on the device. A guidance scale of 1 or less means no guidance."""
        guided = guidance_scale > 1 or 1 not in self._denoisers
        conditioning = self._parts.reader.read(
            prompt, negative_prompt, max(guidance_scale, 1.0 + 2**-10) if guided else guidance_scale, self.size
        )
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
        return np.asarray(self._decode(self._parts.decoder_weights, latents))

    def encode(self, pixels: np.ndarray, noise: np.ndarray) -> jax.Array:
        """Pixels (float32 [height, width, 3], 0 to 1) to latents, sampled with `noise` from their distribution."""
        latents: jax.Array = self._encode(self._parts.encoder_weights, pixels, noise)
        return latents

    @property
    def argument_bytes(self) -> tuple[int, int, int]:
        """Bytes of the arguments of the denoiser's largest program, the decoder's and the encoder's."""
        denoiser = max(denoiser.argument_bytes for denoiser in self._denoisers.values())
        return denoiser, argument_bytes(self._decode), argument_bytes(self._encode)

    def texts(self) -> list[str]:
        """The denoising, decoding and encoding programs as XLA's text."""
        denoising = [text for denoiser in self._denoisers.values() for text in denoiser.texts()]
        return [*denoising, self._decode.as_text(), self._encode.as_text()]


def _decode_function(parts: DiffusionPrograms) -> Callable[..., Any]:
    decode = pure_function(parts.vae, lambda model, latents: model.decode(latents, return_dict=False)[0])
    scale, shift = _normalisation(parts.vae)

    def decode_latents(weights: Any, latents: jax.Array) -> jax.Array:
        latents = (latents / scale + shift).astype(parts.vae_dtype)
        decoded = decode(weights, latents)
        pixels = decoded[0].transpose(1, 2, 0).astype(jnp.float32)
        return jnp.clip(pixels / 2 + 0.5, 0, 1)

    return decode_latents


def _encode_function(parts: DiffusionPrograms) -> Callable[..., Any]:
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
