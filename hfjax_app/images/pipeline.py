"""A text-to-image pipeline as compiled programs: read the prompts, encode a picture, make one denoising step, decode.

The networks are transformers' and diffusers' own, unmodified. `prompt_conditioning.py` prepares the denoiser's
arguments, and `denoiser.py` makes a step. A program takes one picture: a guidance pair keeps the arithmetic units busy.
Pictures that are drawn together alternate in the same programs, and equal those drawn alone to the last bit. Where
there are several devices, two of them share a guidance pair; each holds all weights and computes everything else.
Each size has its own programs.
"""

import threading
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from hfjax_app.images.checkpoint import Pipeline, denoiser_name
from hfjax_app.images.denoiser import Network
from hfjax_app.images.interface import Sizes
from hfjax_app.images.networks import adapted_weights
from hfjax_app.images.prompt_conditioning import PromptReader
from hfjax_app.images.samplers import Samplers
from hfjax_app.images.sized_programs import SizedPrograms, neutral
from hfjax_app.limits import IMAGE_WARM_SIZES
from hfjax_app.runtime import tracing_lock
from hfjax_app.runtime.checkpoints.hub import Checkpoint
from hfjax_app.runtime.held_memory import bytes_of
from hfjax_app.runtime.mesh import PAIR, replicated, serving_mesh
from hfjax_app.runtime.parallel_calls import Calls
from hfjax_app.runtime.program_report import ProgramReport
from hfjax_app.runtime.programs import Programs
from hfjax_app.runtime.transforms import calls_at_once
from hfjax_app.runtime.warm_up import OnExpected, ProgramSpec, WarmUp, ignore

_NETWORKS = ("denoise", "decode_latents", "encode_picture")  # how the names of their programs begin


class DiffusionPrograms:
    """The networks of a pipeline on the device, and their programs.

    Args:
        pipeline: on the CPU; it is not changed.
        alone: whether to compile another program for guidance of 1 and less, which costs half as much.
        programs: compiles; None: for the first two devices of this process, or the only one.
        dtype: of the networks' weights and computation; latents, guidance, noise and the schedulers' sums are float32.
            As in diffusers, an autoencoder that overflows float16 (`force_upcast`) is float32 then.
        checkpoint: the weight files, see `checkpoint.fetch_weights`; None: the weights are in the pipeline.
        sizes: (width, height) to compile for besides `size`; they are never dropped.
        staged: whether `start` compiles only what draws a picture of `size` from a prompt, if there is a bundle.
        on_expected: called before the first program is compiled, see `OnExpected`.

    Raises:
        ModelUnavailable: the pipeline's scheduler can't run in a compiled program, or its files can't be read.
        RequestRejected: the model can't draw one of the sizes.

    Attributes:
        size: (width, height) in pixels of the pictures that the checkpoint was trained for.
        sizes: those that may be chosen.
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
        *,
        alone: bool = False,
        programs: Programs | None = None,
        dtype: Any = jnp.float32,
        checkpoint: Checkpoint | None = None,
        sizes: Sequence[tuple[int, int]] = (),
        staged: bool = False,
        on_expected: OnExpected = ignore,
    ):
        self.samplers = Samplers(pipeline.scheduler)
        self._programs = Programs(mesh=serving_mesh(jax.local_devices()[:PAIR])) if programs is None else programs
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
        patch = self.scale * (module.config.get("patch_size") or 1)
        sample = module.config.sample_size
        height, width = (sample, sample) if isinstance(sample, int) else sample
        self.size = (width * self.scale, height * self.scale)
        self.sizes = Sizes(own=self.size, patch=patch)
        self.rows_guided = self.reader.read(neutral(self.size, 2.0)).rows
        self._alone = alone and self.rows_guided == 2
        self._sized: dict[tuple[int, int], SizedPrograms] = {}
        self._asked_at: dict[tuple[int, int], float] = {}
        self._compiling = threading.Lock()
        kept = dict.fromkeys([self.size, *(self.sizes.checked(*size) for size in sizes)])
        self._kept = {size: SizedPrograms(self, size, alone=self._alone) for size in kept}
        before = [report.name for report in self._programs.reports]  # the text encoders'
        self.warm_up = WarmUp(
            self._programs,
            self.specs,
            staged=staged,
            on_expected=lambda names, count: on_expected([*before, *names], len(before) + count),
        )

    @property
    def specs(self) -> list[ProgramSpec]:
        """The programs of `size` and of the other sizes that are never dropped; those that are needed most first."""
        return [spec for size, sized in self._kept.items() for spec in sized.specs(general=size == self.size)]

    def start(self) -> None:
        """Compile and run the programs; with `staged` only the general ones."""
        self.warm_up.start()

    @property
    def mesh(self) -> jax.sharding.Mesh | None:
        """The devices that share a guidance pair."""
        return self._programs.mesh

    @property
    def reports(self) -> Sequence[ProgramReport]:
        """Of all programs so far."""
        return self._programs.reports

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
        return (*(size for size, sized in self._kept.items() if sized.can_draw), *self._sized)

    @property
    def offered_sizes(self) -> tuple[tuple[int, int], ...]:
        """The sizes whose programs are compiled, or will be without a request, the checkpoint's own first."""
        return (*self._kept, *self._sized)

    @property
    def argument_bytes(self) -> int:
        """Bytes of all networks' weights and a step's arguments on the device, by the compiler's figures."""
        largest: dict[str, int] = {}  # of each network's programs, which share its weights
        for report in self._programs.reports:
            network = next((name for name in _NETWORKS if report.name.startswith(name)), report.name)
            largest[network] = max(report.arguments, largest.get(network, 0))
        return sum(largest.values())

    @property
    def weight_bytes(self) -> int:
        """Bytes of all networks' weights on each device."""
        return bytes_of([self.network.weights, self.decoder_weights, self.encoder_weights, *self.reader.weights])

    def compile_seconds(self, size: tuple[int, int]) -> float:
        """The estimated compile time of a size's programs, from the first size's; 0 if they are warm."""
        return 0.0 if size in self.warm_sizes else self._kept[self.size].compile_seconds

    def is_pending(self, size: tuple[int, int]) -> bool:
        """Whether the programs of a size that is never dropped have not all joined."""
        return size in self._kept and not self._kept[size].can_draw

    def sized(self, size: tuple[int, int]) -> SizedPrograms:
        """The programs for one size, compiled now unless they are warm. Thread-safe.

        Of the sizes that no setting names, the IMAGE_WARM_SIZES that were used last are kept.

        Args:
            size: (width, height), checked.
        """
        if kept := self._kept.get(size):
            return kept
        if found := self._sized.get(size):
            self._asked_at[size] = time.monotonic()
            return found
        with self._compiling, tracing_lock.hold():
            if size not in self._sized:
                made = SizedPrograms(self, size, alone=self._alone)
                WarmUp(self._programs, made.specs(), staged=False).start()
                self._sized[size] = made
                self._asked_at[size] = time.monotonic()
                for other in sorted(self._sized, key=self._asked_at.__getitem__)[:-IMAGE_WARM_SIZES]:
                    del self._sized[other], self._asked_at[other]
            return self._sized[size]
