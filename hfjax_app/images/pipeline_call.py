"""A pipeline's own `__call__` in parts that can be traced: what it asks first, one pass of its loop, and the ending.

The class's code is the only truth: packing, scaled times, guidance, signs and splits of a denoiser's output are its own
lines, between two calls of its scheduler. So stand-ins take the places of its scheduler and its networks, and of the
methods that are no arithmetic, such as `encode_prompt` and `prepare_latents`, whose answers come from a run in torch.
Does not compile, and knows no class of pipelines by name.
"""

import functools
import inspect
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils import _pytree as torch_pytree
from torch.utils._pytree import TreeSpec

from hfjax_app.errors import ModelUnavailable, RequestRejected, first_line
from hfjax_app.images.checkpoint import Pipeline, denoiser_name, draws_from_text
from hfjax_app.images.interface import SIZE_STEP, Latents, Sizes
from hfjax_app.images.networks import same_tensors
from hfjax_app.images.schedule import Timing
from hfjax_app.images.stand_ins import (
    PASSES,
    AnySize,
    Anything,
    Ended,
    Noises,
    Scale,
    Stepped,
    TakesData,
    UncleanedText,
    UnreadPicture,
    having_read,
    scheduler_like,
    stand_in,
    usual_scale,
    value_of,
)

# Classes warn of the arguments of a call. They are not a user's here.
logging.getLogger("diffusers.pipelines").setLevel(logging.ERROR)

# Options of some classes. Their defaults would change the size or the prompt, or read the time where they don't matter.
_PLAIN = {"use_resolution_binning": False, "clean_caption": False, "cfg_truncation": 2.0, "_auto_resize": False}
# Members of some classes, for the same reasons.
_PLAIN_MEMBERS = {"resolutions": AnySize(), "text_preprocessor": UncleanedText()}
_ANSWERING = ("encode_prompt", "prepare_latents", "prepare_image_latents")
_ASKED = (512, 256)  # a size in pixels
_DOUBLINGS = 6
_STEPS = 2  # of a traced call: no class has fewer than one pass then

Size = tuple[int, int]  # (width, height) in pixels
Network = Callable[..., Any]  # takes a module and the arguments of its call


def _counted(shape: tuple[int, ...]) -> torch.Tensor:
    """1, 2, 3, ... in a shape, float32."""
    return torch.arange(1, math.prod(shape) + 1, dtype=torch.float64).reshape(shape).to(torch.float32)


@dataclass(frozen=True, kw_only=True, eq=False)
class Form:
    """What is static in a call: pictures of one size, with or without guidance.

    Attributes:
        size: (width, height) in pixels.
        guided: whether the guidance scale is above the threshold of the class.
        structure: of the answers of the pipeline's methods.
        rest: their leaves, with None in the places of tensors of prompts.
        latents: the place of the latents among the leaves.
        rows: rows of latents in the first call of the denoiser; 1 where it takes something else.
        is_long: whether the prompt has several pieces; its states then have room for all, and NaN in what is left.
        reference: the places among the leaves of what the class makes of a picture that the prompt edits.
    """

    size: Size
    guided: bool
    structure: TreeSpec
    rest: list[Any]
    latents: int
    rows: int
    is_long: bool = False
    reference: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[bool, bool, bool]:
        """What the program for it is compiled for."""
        return self.guided, self.is_long, bool(self.reference)


@dataclass(frozen=True, kw_only=True, eq=False)
class Packing:
    """From noise in the shape in which a pipeline draws it to the samples of its scheduler, at one size.

    Attributes:
        noise_shape: of what the pipeline draws.
        sample_shape: of the scheduler's samples.
        places: int [*sample_shape], each number's place in the flat noise.
        gain: factor of the noise in the first sample, before the scheduler's own.
    """

    noise_shape: tuple[int, ...]
    sample_shape: tuple[int, ...]
    places: np.ndarray
    gain: float

    def pack(self, noise: np.ndarray) -> np.ndarray:
        """Noise, or anything of its shape, in the shape of samples."""
        packed: np.ndarray = np.ascontiguousarray(noise).reshape(-1)[self.places]
        return packed

    def unpack(self, samples: np.ndarray) -> np.ndarray:
        """Samples in the shape of the noise."""
        noise = np.empty(math.prod(self.noise_shape), samples.dtype)
        noise[self.places] = samples
        return noise.reshape(self.noise_shape)


class PipelineCall:
    """The parts of a pipeline's call. Its networks stay as they are.

    Args:
        pipeline: on the CPU, with text encoders that may be called.

    Attributes:
        accepted: the names of the call's arguments.
        thresholds: what the class compares the guidance scale with, as far as it has run.
        answers: of the pipeline's methods in the first run, for runs that ask for something else.
    """

    def __init__(self, pipeline: Pipeline):
        self.pipeline = pipeline
        self._name = denoiser_name(pipeline)
        # A pipeline reads the dtype and device of its networks' parameters. While another thread traces a network for a
        # new size, these are tracers, so the pipeline here has copies.
        self._network = same_tensors(getattr(pipeline, self._name))
        self.vae = same_tensors(pipeline.vae)
        signature = inspect.signature(pipeline.__call__).parameters
        self.accepted = {name: None if p.default is p.empty else p.default for name, p in signature.items()}
        config: Any = self._network.config
        embedded = bool(getattr(config, "guidance_embeds", False) or getattr(config, "time_cond_proj_dim", None))
        self._guidance = "guidance_scale"
        if "true_cfg_scale" in self.accepted and not embedded:
            self._guidance = "true_cfg_scale"
        self.takes_negative = "negative_prompt" in self.accepted and not (
            "true_cfg_scale" in self.accepted and embedded
        )
        self.thresholds: set[float] = set()
        self.answers: Any = None

    @property
    def edits(self) -> bool:
        """Whether the class takes a picture beside the prompt, which says what to change in it."""
        return "image" in self.accepted and "strength" not in self.accepted

    @property
    def needs_picture(self) -> bool:
        """Whether the class draws nothing without that picture, which its text encoder reads too."""
        return self.edits and not draws_from_text(type(self.pipeline))

    def is_guided(self, guidance: float) -> bool:
        """Whether a guidance scale is above the threshold of the class; true for a class without one."""
        return not self.thresholds or guidance > max(self.thresholds)

    def read(
        self,
        prompts: Mapping[str, Any],
        size: Size | None,
        guidance: float,
        filler: str = "",
        picture: Image.Image | None = None,
    ) -> tuple[list[torch.Tensor | None], Form]:
        """The answers of the pipeline's methods for prompts, in torch, up to the denoiser's first call.

        Args:
            prompts: arguments of the call that have the prompts.
            size: None: the pipeline's own.
            guidance: the guidance scale.
            filler: a text beside each prompt, whose length a class gives both; its results are left out.
            picture: that the prompt edits, of this size; None: without one.

        Returns:
            The tensors among the leaves of the answers for prompts, and the form of the call. What the class makes of a
            picture with its autoencoder is NaN in both.
        """
        notes: dict[str, list[Any]] = {name: [] for name in _ANSWERING}

        def noting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
            signature = inspect.signature(method)

            def call(*args: Any, **kwargs: Any) -> Any:
                bound = signature.bind(*args, **kwargs)
                if is_filled := filler and name == "encode_prompt":
                    for key, text in bound.arguments.items():
                        if key.endswith("prompt") and isinstance(text, str | list):
                            bound.arguments[key] = [text if isinstance(text, str) else text[0], filler]
                answer = method(*bound.args, **bound.kwargs)
                notes[name].append(torch_pytree.tree_map(_first_row, answer) if is_filled else answer)
                return notes[name][-1]

            return call

        def reached(*args: Any, **kwargs: Any) -> Any:
            raise Ended(
                next((x for x in torch_pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)), None)
            )

        if not self.is_guided(guidance):  # some classes refuse less
            guidance = max(self.thresholds)
        with torch.no_grad(), TakesData():
            scale = Scale(guidance, torch.tensor(float(guidance)), self.thresholds)
            edited = picture is not None
            members = {"vae": self._without_encoder(self._unread.encode)} if edited else {}
            pipeline = self.with_stand_ins(reached, scheduler_like(self.pipeline.scheduler), **members)
            _answer_by(pipeline, noting)
            arguments = self.arguments(prompts, size, scale, "latent") | ({"image": picture} if edited else {})
            first = value_of(lambda: pipeline(**arguments))
        if self.answers is None:
            self.answers = notes
        leaves, structure = torch_pytree.tree_flatten(notes)
        of_prompts = len(torch_pytree.tree_leaves(notes["encode_prompt"]))  # the rest depends on the size alone
        at = next(i for i, leaf in enumerate(leaves) if i >= of_prompts and _is_tensor(leaf))
        reference = tuple(i for i, leaf in enumerate(leaves) if edited and i >= of_prompts and _is_unread(leaf))
        given = {i for i, leaf in enumerate(leaves) if _is_tensor(leaf) and (i < of_prompts or i in reference)}
        form = Form(
            size=size or (0, 0),
            guided=self.is_guided(guidance),
            structure=structure,
            rest=[None if i in given else leaf for i, leaf in enumerate(leaves)],
            latents=at,
            rows=len(first) if _is_tensor(first) and first.ndim else 1,
            reference=reference,
        )
        return [leaf if i in given else None for i, leaf in enumerate(leaves)], form

    def reference_pixels(self, picture: Image.Image) -> np.ndarray:
        """A picture that the prompt edits as the class reads it, in a size of its own.

        Args:
            picture: RGB, of the drawing's size.

        Returns:
            float32 [height, width, 3] from 0 to 1.

        Raises:
            RequestRejected: the class takes no picture of this size; says why.
        """

        def encode(pixels: torch.Tensor, *_: Any, **__: Any) -> Any:
            raise Ended(pixels.reshape(3, *pixels.shape[-2:]))

        pipeline = self.unprompted(scheduler_like(self.pipeline.scheduler), vae=self._without_encoder(encode))
        arguments = self.arguments(self.usual_prompts, picture.size, usual_scale(set()), "latent")
        try:
            with torch.no_grad(), TakesData():
                read: torch.Tensor = value_of(lambda: pipeline(**arguments | {"image": picture}))
        except Exception as error:
            raise RequestRejected(f"picture to start from: {first_line(error)}") from error
        return ((read + 1) / 2).permute(1, 2, 0).to(torch.float32).numpy()

    def reference(self, vae: Any, form: Form, pixels: torch.Tensor) -> list[torch.Tensor]:
        """What the class makes of a picture that the prompt edits, for the places `form.reference`. Is traced.

        Args:
            vae: the autoencoder, with its weights.
            form: of a call with such a picture.
            pixels: [1, 3, height, width] from -1 to 1, of the size of `reference_pixels`.
        """
        prompts = torch_pytree.tree_unflatten(form.rest, form.structure)["encode_prompt"]
        notes: dict[str, list[Any]] = {name: [] for name in _ANSWERING} | {"encode_prompt": prompts}
        left = iter(self.answers["encode_prompt"])

        def noting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                notes[name].append(method(*args, **kwargs))
                return notes[name][-1]

            return call if name != "encode_prompt" else lambda *_, **__: next(left)

        def reached(*_: Any, **__: Any) -> Any:
            raise Ended(None)

        pipeline = self.with_stand_ins(
            reached,
            scheduler_like(self.pipeline.scheduler),
            vae=vae,
            device=pixels.device,
            image_processor=having_read(self.pipeline, pixels),
        )
        _answer_by(pipeline, noting)
        with TakesData(is_traced=True), Noises(torch.zeros):
            value_of(lambda: pipeline(**self._traced_arguments(form, torch.ones(()), "latent")))
        leaves = torch_pytree.tree_leaves(notes)
        return [leaves[i] for i in form.reference]

    @functools.cached_property
    def _unread(self) -> "UnreadPicture":
        return UnreadPicture(self.vae, math.nan)

    def _without_encoder(self, encode: Callable[..., Any]) -> Any:
        """The autoencoder with another `encode`, on the CPU."""
        return stand_in(self.vae, encode=encode, device=torch.device("cpu"), dtype=torch.float32)

    def packing(self, size: Size | None) -> Packing:
        """How the pipeline makes the first sample of its noise; None: at the pipeline's own size.

        Raises:
            RequestRejected: the pipeline can't draw this size; says why.
            ModelUnavailable: it does more with it than rearranging and scaling.
        """
        noise = Noises(_counted)

        def step(output: Any, time: Any, sample: torch.Tensor, *_: Any, **__: Any) -> Any:
            raise Ended(sample)

        with torch.no_grad(), noise:
            try:
                sample = value_of(lambda: self._dry(size, _STEPS, step=step))
            except Exception as error:
                raise RequestRejected(f"size = {'its own' if size is None else size}: {first_line(error)}") from error
        shape, numbers = noise.shapes[0] if noise.shapes else (), sample.numpy().astype(np.float64)
        count = math.prod(shape)
        gain = float(numbers.max()) / count if count else 0.0
        places = np.rint(numbers / gain).astype(np.int64) - 1 if gain else np.zeros(0, np.int64)
        if places.size != count or not np.array_equal(np.sort(places, None), np.arange(count)):
            raise ModelUnavailable(
                f"{type(self.pipeline).__name__} can't run in compiled programs: its first latents are more than noise"
            )
        return Packing(noise_shape=shape, sample_shape=tuple(numbers.shape), places=places, gain=gain)

    @functools.cached_property
    def latents(self) -> Latents:
        """The shape of the noise, by two sizes of which one is the other on its side."""
        wide, tall = _ASKED
        shape, turned = (self.packing(size).noise_shape for size in ((wide, tall), (tall, wide)))
        axes = [axis for axis, sides in enumerate(zip(shape, turned, strict=True)) if sides[0] != sides[1]]
        if len(axes) != 2 or wide % shape[axes[1]]:
            raise ModelUnavailable(
                f"{type(self.pipeline).__name__} can't run in compiled programs: its latents have no height and width"
            )
        return Latents(shape=shape, height=axes[0], width=axes[1], scale=wide // shape[axes[1]])

    def sizes(self, own: Size | None) -> Sizes:
        """The sizes that the pipeline draws.

        Args:
            own: of the pictures that it was trained for; None: as it draws without a size.

        Raises:
            ModelUnavailable: none was found.
        """
        latents = self.latents
        if own is None:
            shape = self.packing(None).noise_shape
            own = (shape[latents.width] * latents.scale, shape[latents.height] * latents.scale)
        patch_size = getattr(self._network.config, "patch_size", None) or 1
        patch = latents.scale * (patch_size if isinstance(patch_size, int) else patch_size[-1])
        for _ in range(_DOUBLINGS):
            unit = math.lcm(SIZE_STEP, patch)
            asked = (-(-own[0] // unit) * unit + unit, -(-own[1] // unit) * unit + unit)
            try:
                if self.packing(asked).noise_shape == latents.of(asked):
                    return Sizes(own=own, patch=patch)
            except RequestRejected:
                pass
            patch *= 2
        raise ModelUnavailable(f"{type(self.pipeline).__name__} can't run in compiled programs: it has fixed sizes")

    def timing(self, steps: int, size: Size | None, **options: Any) -> Timing:
        """How the pipeline sets its scheduler.

        Args:
            steps: how many.
            size: None: the pipeline's own.
            options: further arguments of the call.

        Raises:
            Exception: the pipeline or its scheduler can't do this number of steps.
        """
        seen: list[dict[str, Any]] = []
        passes = 0

        def step(output: Any, time: Any, sample: torch.Tensor, *_: Any, **__: Any) -> Any:
            nonlocal passes
            passes += 1
            return Stepped((sample, sample))

        real = self.pipeline.scheduler
        fresh = type(real).from_config(real.config)
        signature = inspect.signature(fresh.set_timesteps)

        @functools.wraps(real.set_timesteps)
        def set_timesteps(*args: Any, **kwargs: Any) -> None:
            seen.append({k: v for k, v in signature.bind(*args, **kwargs).arguments.items() if k != "device"})
            fresh.set_timesteps(*args, **kwargs)
            members["timesteps"] = fresh.timesteps
            scheduler.__class__.timesteps = fresh.timesteps

        members: dict[str, Any] = {"step": step, "set_timesteps": set_timesteps}
        scheduler = scheduler_like(real, **members)
        with torch.no_grad():
            value_of(lambda: self._dry(size, steps, scheduler=scheduler, **options))
        arguments = {k: np.asarray(v).tolist() if isinstance(v, np.ndarray) else v for k, v in seen[-1].items()}
        return Timing(arguments=arguments, left_out=len(fresh.timesteps) - passes)

    def _dry(self, size: Size | None, steps: int, *, scheduler: Any = None, step: Any = None, **options: Any) -> Any:
        """A call without networks: the answers of `encode_prompt` are those of the first run."""
        pipeline = self.unprompted(scheduler or scheduler_like(self.pipeline.scheduler, step=step))
        with TakesData():
            arguments = self.arguments(self.usual_prompts, size, usual_scale(self.thresholds), "latent")
            return pipeline(**arguments | {"num_inference_steps": steps} | options)

    def unprompted(self, scheduler: Any, **members: Any) -> Any:
        """The pipeline without text encoders and denoiser."""
        assert self.answers is not None, "a prompt was read"
        left = iter(self.answers["encode_prompt"])
        return self.with_stand_ins(
            lambda *_, **__: Anything(), scheduler, encode_prompt=lambda *_, **__: next(left), **members
        )

    def iteration(
        self, network: Network, form: Form, latents: torch.Tensor, numbers: Mapping[str, torch.Tensor], arrays: Any
    ) -> Any:
        """What a pass of the loop gives its scheduler as the model's output. Is traced.

        Args:
            network: takes the place of the denoiser's forward; `Ended` there ends the pass with a value.
            form: of the call.
            latents: a sample of the scheduler.
            numbers: the step's timestep and input_scale, and the guidance scale, "guidance".
            arrays: the tensors of `read`.
        """
        passes: list[Any] = []

        def forward(*args: Any, **kwargs: Any) -> Any:
            return network(*args, **kwargs) if passes else Anything()

        def step(output: Any, time: Any, sample: Any, *_: Any, **__: Any) -> Any:
            # The first pass brings the latents into the loop: what precedes it may have scaled others.
            if passes:
                raise Ended(output)
            passes.append(sample)
            return Stepped((latents, latents))

        scheduler = scheduler_like(
            self.pipeline.scheduler,
            timesteps=torch.stack([numbers["timestep"]] * PASSES),
            step=step,
            scale_model_input=lambda sample, *_, **__: sample * numbers["input_scale"],
        )
        pipeline = self._traced(form, latents, arrays, forward, scheduler)
        with TakesData(is_traced=True):
            return value_of(lambda: pipeline(**self._traced_arguments(form, numbers["guidance"], "latent")))

    def ending(self, vae: Any, form: Form, latents: torch.Tensor, arrays: Any) -> torch.Tensor:
        """The picture of the last sample: [1, 3, height, width] from 0 to 1. Is traced.

        Args:
            vae: the autoencoder, with its weights.
            form: of the call.
            latents: the last sample of the scheduler.
            arrays: the tensors of `read`.
        """
        scheduler = scheduler_like(
            self.pipeline.scheduler,
            timesteps=torch.stack([latents.new_ones(())] * PASSES),
            step=lambda *_, **__: Stepped((latents, latents)),
        )
        pipeline = self._traced(form, latents, arrays, lambda *_, **__: Anything(), scheduler, vae=vae)
        with TakesData(is_traced=True):
            pictures: torch.Tensor = pipeline(**self._traced_arguments(form, latents.new_ones(()), "pt"))[0]
        return pictures

    def _traced(
        self, form: Form, latents: torch.Tensor, arrays: Any, forward: Any, scheduler: Any, **members: Any
    ) -> Any:
        leaves = [plain if tensor is None else tensor for tensor, plain in zip(arrays, form.rest, strict=True)]
        leaves[form.latents] = latents
        answers = torch_pytree.tree_unflatten(leaves, form.structure)
        left = {name: iter(answers[name]) for name in _ANSWERING}
        if form.reference:
            members["image_processor"] = having_read(self.pipeline, torch.zeros(1, 3, 1, 1))
        pipeline = self.with_stand_ins(forward, scheduler, device=latents.device, **members)
        _answer_by(pipeline, lambda name, _: lambda *_, **__: next(left[name]))
        return pipeline

    def _traced_arguments(self, form: Form, guidance: torch.Tensor, output: str) -> dict[str, Any]:
        value = max(self.thresholds, default=1.0) + (1.0 if form.guided else 0.0)
        arguments = self.arguments(self.usual_prompts, form.size, Scale(value, guidance, set()), output)
        return arguments | ({"image": blank(form.size)} if form.reference else {})

    @property
    def usual_prompts(self) -> dict[str, str]:
        return {"prompt": "a"} | ({"negative_prompt": " "} if self.needs_negative else {})

    @property
    def needs_negative(self) -> bool:
        """Whether the class guides only where it is given a negative prompt, be it blank."""
        return self._guidance == "true_cfg_scale" and self.takes_negative

    def arguments(self, prompts: Mapping[str, Any], size: Size | None, scale: Scale, output: str) -> dict[str, Any]:
        known = {
            **_PLAIN,
            **({"width": size[0], "height": size[1], "max_area": size[0] * size[1]} if size else {}),
            self._guidance: scale,
            "num_inference_steps": _STEPS,
            "output_type": output,
        }
        arguments = dict(prompts) | {name: value for name, value in known.items() if name in self.accepted}
        return arguments | ({"image": blank(size)} if self.needs_picture else {})

    def with_stand_ins(self, forward: Any, scheduler: Any, **members: Any) -> Any:
        """The pipeline with stand-ins: their dtype is float32, whatever the networks' weights have."""
        device = members.get("device", torch.device("cpu"))
        of_network = {"device": device, "dtype": torch.float32}
        plain = {name: value for name, value in _PLAIN_MEMBERS.items() if hasattr(self.pipeline, name)}
        of_vae = of_network | ({"encode": self._unread.encode} if self.needs_picture else {})
        members = {"device": device, "watermark": None, "vae": stand_in(self.vae, **of_vae)} | plain | members
        network = stand_in(self._network, forward=forward, **of_network)
        return stand_in(self.pipeline, **{self._name: network}, scheduler=scheduler, **members)


def _answer_by(pipeline: Any, answers: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace those of the methods `_ANSWERING` that a pipeline has.

    Args:
        pipeline: of `stand_in`.
        answers: makes a function from a method's name and the method.
    """
    kind = type(pipeline)
    for name in _ANSWERING:
        if hasattr(kind, name):
            setattr(kind, name, staticmethod(answers(name, functools.partial(getattr(kind, name), pipeline))))


def blank(size: Size | None) -> Image.Image:
    """A picture of a size; None: for a class that reads pictures in a size of its own, a square."""
    return Image.new("RGB", size or (max(_ASKED), max(_ASKED)))


def _is_unread(leaf: Any) -> bool:
    return _is_tensor(leaf) and bool(leaf.isnan().any())


def _first_row(leaf: Any) -> Any:
    """Of a result for two prompts."""
    return leaf[:1] if _is_tensor(leaf) and leaf.shape[:1] == (2,) else leaf


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)
