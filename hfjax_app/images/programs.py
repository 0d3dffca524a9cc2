"""A text-to-image pipeline as compiled programs: read the prompts, encode a picture, make one denoising step, decode.

The networks and the code around them are transformers' and diffusers' own, unmodified: `pipeline_call.py` takes the
pipeline's call apart, `prompt_conditioning.py` reads prompts with it, `denoiser.py` makes a step of it, and
`autoencoder.py` holds what stands before and after them. A program takes one picture: a guidance pair keeps the
arithmetic units busy. Pictures that are drawn together alternate in the same programs, and equal those drawn alone to
the last bit. Where there are several devices, they share the rows and the tokens of a step; each holds all weights and
computes everything else. The weights of a denoiser and of text encoders that do not fit one device are split over all
of them. Each size has its own programs. Those of the checkpoint's own size and of the settings compile at the start and
are kept; another size compiles for its first request, in a thread, one size at a time.
"""

import math
import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from diffusers.models import AutoencoderKL
from PIL import Image

from hfjax_app.errors import ModelUnavailable, RequestRejected
from hfjax_app.images.autoencoder import Autoencoder
from hfjax_app.images.checkpoint import Pipeline, denoiser_name
from hfjax_app.images.denoiser import Denoiser, Network
from hfjax_app.images.interface import GUIDANCE_SCALE
from hfjax_app.images.lora import LoraFactors
from hfjax_app.images.merged_weights import MergedWeights, Part
from hfjax_app.images.networks import USUAL, Storage, adapted_weights, axes_on_devices, network_bytes
from hfjax_app.images.pipeline_call import blank
from hfjax_app.images.prompt_conditioning import ALONE, GUIDED, Conditioning, PromptReader, shapes_of
from hfjax_app.images.request import CompletedRequest, ImageRequest, loras_of
from hfjax_app.images.samplers import Samplers
from hfjax_app.images.schedule import Schedule, Timing
from hfjax_app.images.steps import Waiting
from hfjax_app.limits import IMAGE_WARM_SIZES
from hfjax_app.runtime import tracing
from hfjax_app.runtime.checkpoints.hub import Checkpoint
from hfjax_app.runtime.checkpoints.int8 import scale_of
from hfjax_app.runtime.memory import bytes_of, host_bytes_of
from hfjax_app.runtime.mesh import picture_mesh, replicated
from hfjax_app.runtime.parallel_calls import Calls
from hfjax_app.runtime.program_report import ProgramReport, operations
from hfjax_app.runtime.programs import Program, Programs
from hfjax_app.runtime.seams.torchax import jax_dtype
from hfjax_app.runtime.topology import memory_of
from hfjax_app.runtime.transforms import calls_at_once
from hfjax_app.runtime.warm_up import OnExpected, ProgramSpec, WarmUp, ignore, run_on_zeros

_NETWORKS = ("denoise", "decode_latents", "encode_picture")  # how the names of their programs begin
_LOOK_UP_S = 0.5


def mesh_for(pipeline: Pipeline, storage: Storage) -> jax.sharding.Mesh | None:
    """The mesh of a pipeline on the devices of this process."""
    devices = jax.local_devices()
    memory = memory_of(devices[0]) if storage.memory is None else storage.memory
    return picture_mesh(devices, sum(network_bytes(pipeline, storage).values()), memory)


class DiffusionPrograms:
    """The networks of a pipeline on the device, and their programs.

    Args:
        pipeline: on the CPU; it is not changed.
        guidance: the usual guidance scale; if it means none, such pictures have a program that costs half as much.
        programs: compiles; None: for the devices of this process, see `picture_mesh`.
        storage: of the networks' weights; latents, guidance, noise and the schedulers' sums are float32. As in
            diffusers, an autoencoder that overflows float16 (`force_upcast`) is float32 then.
        checkpoint: the weight files, see `checkpoint.fetch_weights`; None: the weights are in the pipeline.
        size: (width, height) in pixels of the pictures that the checkpoint was trained for; None: the pipeline's own.
        sizes: (width, height) to compile for besides `size`; they are never dropped.
        staged: whether `start` compiles only what draws a picture of `size` from a prompt, if there is a bundle.
        loras: that may be chosen.
        on_expected: called before the first program is compiled, see `OnExpected`.

    Raises:
        ModelUnavailable: the pipeline's scheduler can't run in a compiled program, or its files can't be read.
        RequestRejected: the model can't draw one of the sizes.

    Attributes:
        size: (width, height) in pixels of the pictures that the checkpoint was trained for.
        sizes: those that may be chosen.
        latents: the shape of the noise that the pipeline draws.
        scale: pixels a side for each latent.
        can_encode: whether a picture to start from can be read.
        edits: whether the prompt says what to change in that picture, and the first sample is noise.
        needs_picture: whether it draws nothing without that.
        samplers: the schedulers that may be chosen.
        reader: prompts -> the denoiser's conditioning.
        dtype: of the denoiser's and the text encoders' weights.
        network: the denoiser.
        autoencoder: decodes pictures, and reads those to start from.
        merged: its weights and the text encoders', with any of the LoRAs.
        calls: runs calls in parallel where that is faster on the device.
        everywhere: the sharding of replicated arrays; None without a mesh.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        guidance: float = GUIDANCE_SCALE,
        programs: Programs | None = None,
        storage: Storage = USUAL,
        checkpoint: Checkpoint | None = None,
        size: tuple[int, int] | None = None,
        sizes: Sequence[tuple[int, int]] = (),
        loras: Sequence[LoraFactors] = (),
        staged: bool = False,
        on_expected: OnExpected = ignore,
    ):
        self._programs = Programs(mesh=mesh_for(pipeline, storage)) if programs is None else programs
        self.everywhere = None if self._programs.mesh is None else replicated(self._programs.mesh)
        self.dtype, quantize = jnp.dtype(jax_dtype(storage.torch_dtype)), storage.quantize
        on_host = storage.text_encoders == "host"
        self.reader = PromptReader(pipeline, self._programs, self.dtype, checkpoint, quantize, on_host=on_host)
        self.call = self.reader.call
        self.samplers = Samplers(pipeline.scheduler, self._timing)
        denoiser = denoiser_name(pipeline)
        module = getattr(pipeline, denoiser)
        overflows = self.dtype == jnp.float16 and pipeline.vae.config.get("force_upcast", True)
        vae_dtype = jnp.dtype(jnp.float32) if overflows else self.dtype
        files = checkpoint and checkpoint.part(denoiser)
        weights, adapted = adapted_weights(self._programs, module, self.dtype, files, quantize=quantize, splits=True)
        changed = {scale_of(key) for lora in loras for key in lora.parts.get(denoiser, ())}
        self.network = Network(adapted, weights, self.dtype, self.call, self._programs, changed)
        parts = {
            name: Part(weights=own, axes=axes_on_devices(getattr(pipeline, name), self._programs, self.dtype))
            for name, own in ({denoiser: self.network.weights} | self.reader.weights).items()
        }
        self.merged = MergedWeights(parts, loras)
        self.denoiser_name = denoiser
        self.calls = Calls("image-call", calls_at_once(self._programs.mesh))
        vae_files = checkpoint and checkpoint.part("vae")
        vae_weights, vae = adapted_weights(self._programs, pipeline.vae, vae_dtype, vae_files)
        self.autoencoder = Autoencoder(vae, vae_weights, vae_dtype, self.call, self.reader.pictures)
        self.latents, self.sizes = self.call.latents, self.call.sizes(size)
        self.size = self.sizes.own
        self.scale = self.latents.scale
        as_vae = isinstance(pipeline.vae, AutoencoderKL) and len(self.latents.shape) == 4
        can_read = self.reader.pictures is not None or as_vae
        self.edits, self.needs_picture = self.call.edits, self.call.needs_picture
        self.can_encode = self.edits or (can_read and self.samplers.noises)
        self._alone = self.reader.takes_guidance and not self.call.is_guided(guidance)
        self._sized: dict[tuple[int, int], SizedPrograms] = {}
        self._asked_at: dict[tuple[int, int], float] = {}
        self._compiling = threading.Lock()
        self._waited_for = threading.Lock()  # held while a size compiles for a request
        kept = dict.fromkeys([self.size, *(self.sizes.checked(*size) for size in sizes)])
        self._kept = {size: SizedPrograms(self, size, alone=self._alone) for size in kept}
        before = [report.name for report in self._programs.reports]  # the text encoders'
        self.warm_up = WarmUp(
            self._programs,
            self.specs,
            staged=staged,
            on_expected=lambda names, count: on_expected([*before, *names], len(before) + count),
        )

    def _timing(self, steps: int, size: tuple[int, int] | None, strength: float | None) -> Timing:
        """How the pipeline sets its scheduler; with a strength, where it starts from a picture."""
        if strength is None:
            return self.call.timing(steps, size)
        if (pictures := self.reader.pictures) is not None and size is not None:
            timing = pictures.begun(steps, size, strength)
        else:
            timing = replace(self.call.timing(steps, size), start=steps - min(int(steps * strength), steps))
        if timing.start >= steps:
            raise RequestRejected(f"strength = {strength!r}: of {steps} steps it leaves none; raise it or the steps")
        return timing

    @property
    def specs(self) -> list[ProgramSpec]:
        """The programs of `size` and of the other sizes that are never dropped; those that are needed most first."""
        own = [spec for size, sized in self._kept.items() for spec in sized.specs(general=size == self.size)]
        return [*own, *self.merged.specs]

    def start(self) -> None:
        """Compile and run the programs; with `staged` only the general ones."""
        self.warm_up.start()

    @property
    def mesh(self) -> jax.sharding.Mesh | None:
        """The devices that draw a picture together."""
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
        return bytes_of([self.network.weights, self.autoencoder.weights, self.reader.weights])

    @property
    def sent_bytes(self) -> int:
        """Bytes of text encoders that go from the host's memory to each device for a new text."""
        return host_bytes_of([self.reader.weights])

    def work(self, guidance: float) -> int:
        """Operations of the denoiser in a step of a picture of `size`.

        Args:
            guidance: the guidance scale.
        """
        guided = not self.reader.takes_guidance or self.call.is_guided(guidance)
        conditioning = self.reader.shaped(_neutral(self.size, GUIDED if guided else ALONE))
        form, arrays = conditioning.form, shapes_of(conditioning.arrays)
        scalar = jax.ShapeDtypeStruct((), jnp.float32)
        numbers = dict.fromkeys(("timestep", "input_scale", "guidance"), scalar)
        latents = jax.ShapeDtypeStruct(self.call.packing(self.size).sample_shape, jnp.float32)

        def step(weights: Any, latents: Any, arrays: Any, numbers: Any) -> jax.Array:
            return self.network.output(weights, form, latents, arrays, numbers)

        return operations(step, self.network.weights, latents, arrays, numbers)

    def compile_seconds(self, size: tuple[int, int]) -> float:
        """The estimated compile time of a size's programs, from the first size's; 0 if they are warm."""
        return 0.0 if size in self.warm_sizes else self._kept[self.size].compile_seconds

    def sized(self, size: tuple[int, int]) -> "SizedPrograms":
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
        with self._compiling, tracing.hold():
            if size not in self._sized:
                made = SizedPrograms(self, size, alone=self._alone)
                WarmUp(self._programs, made.specs(), staged=False).start()
                self._sized[size] = made
                self._asked_at[size] = time.monotonic()
                for other in sorted(self._sized, key=self._asked_at.__getitem__)[:-IMAGE_WARM_SIZES]:
                    del self._sized[other], self._asked_at[other]
            return self._sized[size]

    def programs_for(self, request: CompletedRequest) -> "Generator[Waiting, None, SizedPrograms]":
        """The programs that a request needs, once they have joined. May be closed at each yield.

        Yields:
            Waiting, twice a second, with the reason.

        Raises:
            ModelUnavailable: they are missing, and their compilation was given up.
        """
        while (kept := self._kept.get(request.size)) and not kept.can_draw:
            self._check_not_given_up()
            yield Waiting(reason="the programs for {} x {} are being compiled".format(*request.size))
            time.sleep(_LOOK_UP_S)
        programs = yield from self._when_compiled(request.size)
        while not programs.can_draw_long and self.reader.is_long(request):
            self._check_not_given_up()
            yield Waiting(reason="the program for long prompts is being compiled")
            time.sleep(_LOOK_UP_S)
        while request.loras and not self.merged.is_ready:
            self._check_not_given_up()
            yield Waiting(reason="the programs that merge LoRAs are being compiled")
            time.sleep(_LOOK_UP_S)
        while request.image is not None and not programs.can_encode:
            self._check_not_given_up()
            yield Waiting(reason="the program that reads pictures is being compiled")
            time.sleep(_LOOK_UP_S)
        return programs

    def _check_not_given_up(self) -> None:
        if reason := self.warm_up.given_up:
            raise ModelUnavailable(f"the programs for this request are missing: {reason}")

    def _when_compiled(self, size: tuple[int, int]) -> "Generator[Waiting, None, SizedPrograms]":
        """The programs for a size. They compile in another thread, one size at a time.

        A request that is closed does not wait for a compilation. One that has begun is finished and kept for later
        requests; one that has not begun is dropped.
        """
        started, (wide, tall), compiling = time.perf_counter(), size, None
        while compiling is None or not compiling.done():
            if not (seconds := self.compile_seconds(size)):
                break
            if compiling is None and self._waited_for.acquire(blocking=False):
                compiling = self._compile_aside(size)
            left = max(1, round(seconds - (time.perf_counter() - started)))
            yield Waiting(reason=f"{wide} x {tall} compiles about {left} s first")
            if compiling is None:
                time.sleep(_LOOK_UP_S)  # a caller that has gone can close the generator at each yield
            else:
                wait([compiling], _LOOK_UP_S)
        return self.sized(size) if compiling is None else compiling.result()

    def _compile_aside(self, size: tuple[int, int]) -> "Future[SizedPrograms]":
        """Compile in a daemon thread, so that the process can end meanwhile; releases `_waited_for` afterwards."""
        compiling: Future[SizedPrograms] = Future()

        def compile_programs() -> None:
            try:
                compiling.set_result(self.sized(size))
            except Exception as error:
                compiling.set_exception(error)
            finally:
                self._waited_for.release()

        threading.Thread(target=compile_programs, name="image-compiler", daemon=True).start()
        return compiling


class SizedPrograms:
    """The programs for pictures of one size; they must have joined before they are called.

    Attributes:
        size: (width, height) in pixels.
        packing: from noise to the scheduler's samples.
    """

    def __init__(self, parts: DiffusionPrograms, size: tuple[int, int], *, alone: bool):
        self._parts, self.size = parts, size
        self._decode: Program | None = None
        self._encode: Program | None = None
        self.packing = parts.call.packing(size)
        self._name = name = "" if size == parts.size else f"_{size[0]}x{size[1]}"
        latents = jax.ShapeDtypeStruct(self.packing.sample_shape, jnp.float32)
        scalar = jax.ShapeDtypeStruct((), jnp.float32)
        depth = parts.samplers.depth
        state = {
            "latents": latents,
            "memory": latents,
            "history": jax.ShapeDtypeStruct((depth - 1, 2, *latents.shape), jnp.float32),
        }
        fixed = {
            "noise": latents,
            "image": latents,
            "mask": latents,
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
        # By `Form.key`: whether there is guidance, whether the prompt is long, and whether it edits a picture.
        self._denoisers: dict[tuple[bool, bool, bool], Denoiser] = {}
        read_size: tuple[int, int] | None = size
        try:
            read_size = parts.call.reference_pixels(blank(size)).shape[1::-1] if parts.edits else size
        except RequestRejected:  # for the class the size is too small or too long to edit; it draws from prompts alone
            read_size = None
        usual = parts.reader.shaped(_neutral(size, GUIDED))
        lengths = {"": "a", "_long": "a BREAK a"} if parts.reader.most_pieces > 1 else {"": "a"}
        kinds = [
            (*length, guided, edited)
            for edited in ((False, True) if parts.edits and not parts.needs_picture and read_size else (False,))
            for length in lengths.items()
            for guided in ((True, False) if alone else (True,))
        ]
        form = usual.form
        for long, prompt, guided, edited in kinds:
            request = _neutral(size, GUIDED if guided else ALONE, prompt)
            if edited:
                request = replace(request, image=Image.new("RGB", size))
            conditioning = parts.reader.shaped(request)
            form = conditioning.form
            self._denoisers[form.key] = Denoiser(
                f"denoise{'' if guided else '_alone'}{'_edited' if edited else ''}{long}{name}",
                parts.mesh,
                parts.network,
                conditioning,
                state,
                fixed,
                numbers,
                parts.calls,
            )
        self._of_prompts = parts.reader.learn(name) if parts.needs_picture else []
        decoding = (parts.autoencoder.weights, latents, shapes_of(usual.arrays))
        self._unread = [None if array is None else np.zeros_like(array) for array in usual.arrays]
        self._decode_spec = ProgramSpec(
            name=f"decode_latents{name}",
            function=parts.autoencoder.decoding(usual.form),
            args=decoding,
            join=partial(self._join, "_decode", decoding),
            shardings=parts.everywhere,
        )
        self._encode_spec: ProgramSpec | None = None
        if not parts.can_encode or read_size is None:
            return
        encoding: tuple[Any, ...] = (
            parts.autoencoder.weights,
            jax.ShapeDtypeStruct((read_size[1], read_size[0], 3), jnp.float32),
        )
        if parts.edits:
            function = parts.autoencoder.referencing(form)
        else:
            encoding = (*encoding, jax.ShapeDtypeStruct(self.packing.noise_shape, jnp.float32))
            function = parts.autoencoder.encoding(self.packing)
        self._encode_spec = ProgramSpec(
            name=f"encode_picture{name}",
            function=function,
            args=encoding,
            join=partial(self._join, "_encode", encoding),
            shardings=parts.everywhere,
        )

    def specs(self, *, general: bool = False) -> list[ProgramSpec]:
        """The programs: first those that draw a picture of few words, which are general ones if `general`."""
        usual: list[ProgramSpec] = []
        others: list[ProgramSpec] = []
        for key, denoiser in self._denoisers.items():
            (usual if self._is_usual(key) else others).extend(denoiser.specs)
        reading = [] if self._encode_spec is None else [self._encode_spec]
        drawing = [*usual, self._decode_spec, *(reading if self._parts.needs_picture else [])]
        drawing = [replace(spec, general=general) for spec in drawing]
        return [*drawing, *([] if self._parts.needs_picture else reading), *others]

    def _is_usual(self, key: tuple[bool, bool, bool]) -> bool:
        """Whether the denoiser of a form draws from few words, and without a picture unless the class needs one."""
        _, is_long, is_edited = key
        return not is_long and is_edited == self._parts.needs_picture

    def _join(self, attribute: str, arguments: tuple[Any, ...], program: Program) -> None:
        run_on_zeros(program, arguments)
        setattr(self, attribute, program)

    @property
    def can_draw(self) -> bool:
        """Whether the programs have joined that draw a picture from a prompt."""
        usual = [denoiser.is_ready for key, denoiser in self._denoisers.items() if self._is_usual(key)]
        return all(usual) and self._decode is not None and (self._encode is not None or not self._parts.needs_picture)

    @property
    def can_draw_long(self) -> bool:
        """Whether the programs have joined that draw from a prompt of several pieces."""
        return all(denoiser.is_ready for (_, is_long, _), denoiser in self._denoisers.items() if is_long)

    @property
    def can_encode(self) -> bool:
        """Whether the programs have joined that read a picture to start from, and that edit it."""
        edit = [denoiser.is_ready for (*_, is_edited), denoiser in self._denoisers.items() if is_edited]
        return all(edit) and self._encode is not None

    @property
    def compile_seconds(self) -> float:
        """The programs' compile time, or the time without the cache; of those that have joined."""
        # Not the elapsed time: other models' programs may have been compiled first.
        names = {spec.name for spec in self.specs()}
        if self._parts.needs_picture:
            names.add(f"encode_prompt{self._name}")
        return sum(report.seconds + report.saved for report in self._parts.reports if report.name in names)

    def read(self, request: CompletedRequest, edited: np.ndarray | None) -> Conditioning:
        """The conditioning for a request, on the device.

        Args:
            request: to the model.
            edited: the picture that the prompt edits, float32 [height, width, 3] from 0 to 1, in the size in which the
                class reads it; None without one.

        Raises:
            ModelUnavailable: there is no memory for its LoRAs.
        """
        parts, asked = self._parts, replace(request, guidance_scale=GUIDED if self._is_guided(request) else ALONE)
        merged = parts.merged.of(tuple(loras_of(request.loras).items()))
        conditioning = parts.reader.read_with(merged, asked)
        arrays: list[Any] = list(conditioning.arrays)
        if edited is not None:
            assert self._encode is not None, "it has joined"
            made = self._encode(parts.autoencoder.weights, edited)
            for place, array in zip(conditioning.form.reference, made, strict=True):
                arrays[place] = array
        return replace(conditioning, arrays=self.put(arrays), weights=merged[parts.denoiser_name])

    def guidance(self, request: CompletedRequest) -> np.float32:
        """The guidance scale for the programs: at the threshold of the class it changes nothing."""
        return np.float32(max([request.guidance_scale, *self._parts.call.thresholds]))

    def _is_guided(self, request: CompletedRequest) -> bool:
        alone = any(not guided for guided, *_ in self._denoisers)
        return not alone or self._parts.call.is_guided(request.guidance_scale)

    def channels_last(self, latents: np.ndarray) -> np.ndarray:
        """Latents of the noise's shape as [height, width, channels]."""
        axes = self._parts.latents.height, self._parts.latents.width
        moved = np.moveaxis(latents, axes, (0, 1))
        return moved.reshape(*moved.shape[:2], -1)

    def channels_first(self, latents: np.ndarray) -> np.ndarray:
        """Latents [height, width, channels], or 1 of them, in the noise's shape."""
        axes = self._parts.latents.height, self._parts.latents.width
        others = [side for axis, side in enumerate(self.packing.noise_shape) if axis not in axes]
        whole = np.broadcast_to(latents, (*latents.shape[:2], math.prod(others)))
        return np.moveaxis(whole.reshape(*latents.shape[:2], *others), (0, 1), axes)

    def put(self, arrays: Any) -> Any:
        """A pytree of arrays on the programs' devices, so that no step copies them again."""
        return jax.device_put(arrays, self._parts.everywhere)

    def start(self, latents: np.ndarray) -> dict[str, jax.Array]:
        """The state before the first step, on the device: latents (float32, a sample), history and memory."""
        history = np.zeros((self._parts.samplers.depth - 1, 2, *latents.shape), np.float32)
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
        return self._denoisers[conditioning.form.key](state, conditioning, fixed, numbers)

    def decode(self, latents: jax.Array) -> np.ndarray:
        """Latents to pixels, float32 [height, width, 3], 0 to 1."""
        assert self._decode is not None, "it has joined"
        return np.asarray(self._decode(self._parts.autoencoder.weights, latents, self._unread))

    def encode(self, pixels: np.ndarray, noise: np.ndarray) -> jax.Array:
        """Pixels (float32 [height, width, 3], 0 to 1) to a clean sample, drawn with `noise` from its distribution."""
        assert self._encode is not None, "it has joined"
        latents: jax.Array = self._encode(self._parts.autoencoder.weights, pixels, noise)
        return latents

    def texts(self) -> list[str]:
        """The denoising, decoding and encoding programs as XLA's text."""
        denoising = [text for denoiser in self._denoisers.values() for text in denoiser.texts()]
        return [*denoising, *(program.as_text() for program in (self._decode, self._encode) if program is not None)]


def _neutral(size: tuple[int, int], guidance_scale: float, prompt: str = "a") -> ImageRequest:
    """A request to compile with."""
    return ImageRequest(prompt, width=size[0], height=size[1], guidance_scale=guidance_scale)
