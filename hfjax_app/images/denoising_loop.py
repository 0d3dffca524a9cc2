"""The denoising loop: the steps of a request's pictures, one after the other, in turns with those of other requests."""

import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import jax
import numpy as np
from PIL import Image

from hfjax_app.errors import ModelUnavailable
from hfjax_app.images import noise
from hfjax_app.images.generation_parameters import GenerationParameters
from hfjax_app.images.programs import DiffusionPrograms, SizedPrograms
from hfjax_app.images.prompt_conditioning import Conditioning
from hfjax_app.images.request import CompletedRequest
from hfjax_app.images.schedule import Schedule
from hfjax_app.images.start_picture import Placement
from hfjax_app.images.steps import ImageStep, Picture, to_picture
from hfjax_app.line import FairLine

# Up to this many pixels a side, decoding costs little next to a denoising step.
MAX_DECODED = 128
_BLOCK = 8

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawing:
    """A request on its way through the steps.

    Attributes:
        request: to the model.
        schedule: of its steps.
        pixels: of the picture to start from, float32 [height, width, 3] from 0 to 1, or None.
        edited: the same of the picture that the prompt edits, or None.
        place: in the picture that it is drawn into; None: no part of that stays.
        parameters: of its first picture.
        previews: whether its steps have previews.
    """

    request: CompletedRequest
    schedule: Schedule
    pixels: np.ndarray | None
    edited: np.ndarray | None
    place: Placement | None
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
        request, schedule, packing = drawing.request, drawing.schedule, programs.packing
        near = seed if request.variation_of is None else request.variation_of
        first, spread = noise.first_noise(near, packing.noise_shape)
        if request.variation_of is not None:
            other, _ = noise.first_noise(seed, packing.noise_shape)
            first = noise.between(first, other, request.variation)
        first = packing.pack(first if request.latents is None else request.latents)
        mask = np.ones_like(first)
        if drawing.place is not None:
            mask = packing.pack(programs.channels_first(drawing.place.mask[..., None].astype(np.float32)))
        gain = np.float32(schedule.noise_scale * packing.gain)
        if drawing.pixels is None:
            image = np.zeros_like(first)
            latents = first * gain
        else:
            image = np.asarray(programs.encode(drawing.pixels, spread))
            latents = schedule.noising[0, 0] * image + schedule.noising[0, 1] * first
            if drawing.place is not None and request.strength == 1:  # as in diffusers: starts from noise alone
                latents = first * gain
        fixed = {
            "noise": first,
            "image": image,
            "mask": mask,
            "key": noise.key_of(near),
            "guidance": programs.guidance(request),
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


class DenoisingLoop:
    """Requests -> pictures. Thread-safe: requests alternate step by step.

    Args:
        programs: of the model; `start` was called.

    Attributes:
        steps: denoising steps of all pictures.
        steps_per_s: of the latest request that has ended; None: none has.
    """

    def __init__(self, programs: DiffusionPrograms):
        self._programs = programs
        self._device = FairLine()
        self.steps = 0
        self.steps_per_s: float | None = None
        self._colours: np.ndarray | None = None
        if max(programs.size) > MAX_DECODED:
            own = programs.sized(programs.size)
            self._colours = _fitted_colours(lambda latents: own.decode(own.put(own.packing.pack(latents))), own)

    def draw(self, drawing: Drawing, programs: SizedPrograms, notice: str | None) -> Generator[ImageStep, None, None]:
        """Draw the pictures of a request.

        Args:
            drawing: what to draw.
            programs: for its size.
            notice: a remark for the user, or None.

        Raises:
            ModelUnavailable: latents or pixels are not finite.
        """
        started, request, schedule = time.perf_counter(), drawing.request, drawing.schedule
        with self._device.hold():
            conditioning = programs.read(request, drawing.edited)
        states = []
        for seed in request.seeds:
            with self._device.hold():
                states.append(DenoisingState.begin(drawing, programs, seed))
        began = time.perf_counter()
        for i in range(schedule.steps):
            advance = partial(
                DenoisingState.advance, programs=programs, conditioning=conditioning, schedule=schedule, step=i
            )
            expected = self._in_turns(advance, states)
            self.steps += len(states)
            results: list[tuple[np.ndarray | None, np.ndarray | None]] = [(None, None)] * len(states)
            if i == schedule.steps - 1:
                self.steps_per_s = schedule.steps * len(states) / (time.perf_counter() - began)
                results = self._in_turns(partial(self._finished, programs=programs), states)
            pictures = tuple(
                Picture(
                    seed=state.seed,
                    pixels=pixels,
                    latents=latents,
                    parameters=drawing.parameters.of_seed(state.seed),
                    place=None if pixels is None else drawing.place,
                )
                for state, (pixels, latents) in zip(states, results, strict=True)
            )
            yield ImageStep(
                step=i + 1,
                steps=schedule.steps,
                seconds=time.perf_counter() - started,
                pictures=pictures,
                show=partial(self._previews, drawing, pictures, expected, programs) if drawing.previews else tuple,
                notice=notice,
            )

    def _finished(self, state: DenoisingState, programs: SizedPrograms) -> tuple[np.ndarray, np.ndarray]:
        """Pixels and latents of a picture after its last step."""
        pixels = programs.decode(state.arrays["latents"])
        if not np.isfinite(pixels).all():
            raise ModelUnavailable("the image model made pixels that are no numbers (NaN); try another seed")
        return pixels, np.asarray(state.arrays["latents"])

    def _in_turns(self, call: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
        """`call` of each item, in groups of as many as `calls` runs in parallel.

        The device is released after each group is done, so that at most one group waits in its queue.
        """
        results: list[_Result] = []
        for group in self._programs.calls.groups(items):
            with self._device.hold():
                results += self._programs.calls.together(call, group)
        return results

    def _previews(
        self, drawing: Drawing, pictures: Sequence[Picture], expected: list[jax.Array], programs: SizedPrograms
    ) -> list[Image.Image]:
        """The pictures; before the last step, pictures of their predicted clean latents."""
        if finished := [picture.image for picture in pictures if picture.image is not None]:
            return finished
        if self._colours is not None:
            unpacked = [programs.channels_last(programs.packing.unpack(np.asarray(clean))) for clean in expected]
            shown = [_estimate(latents, self._colours, programs.size) for latents in unpacked]
        else:
            shown = [to_picture(pixels) for pixels in self._in_turns(programs.decode, expected)]
        return shown if drawing.place is None else [drawing.place.preview(picture) for picture in shown]


def _fitted_colours(decode: Callable[[np.ndarray], np.ndarray], programs: SizedPrograms) -> np.ndarray:
    """The affine map from a latent's channels to its colour, by least squares against the decoder.

    The decoder gets patches of constant random latents; its pixels are averaged over each latent.

    Args:
        decode: latents (float32, of the noise's shape) to pixels [height, width, 3].
        programs: have the shape of the latents.

    Returns:
        float32 [channels + 1, 3]; the last row is the offset.
    """
    random = np.random.default_rng(0)
    tall, wide, channels = programs.channels_last(np.zeros(programs.packing.noise_shape, np.float32)).shape
    blocks = -(-tall // _BLOCK), -(-wide // _BLOCK)
    inputs, outputs = [], []
    for _ in range(-(-2 * (channels + 1) // math.prod(blocks))):  # twice as many equations as unknowns
        coarse = random.standard_normal((channels, *blocks)).astype(np.float32)
        latents = np.moveaxis(coarse.repeat(_BLOCK, 1).repeat(_BLOCK, 2)[:, :tall, :wide], 0, -1)
        pixels = decode(programs.channels_first(latents))
        high, broad = pixels.shape[0] // tall, pixels.shape[1] // wide
        outputs.append(pixels.reshape(tall, high, wide, broad, 3).mean((1, 3)).reshape(-1, 3))
        inputs.append(_with_offset(latents))
    affine: np.ndarray = np.linalg.lstsq(np.concatenate(inputs), np.concatenate(outputs), rcond=None)[0]
    return affine.astype(np.float32)


def _estimate(latents: np.ndarray, colours: np.ndarray, size: tuple[int, int]) -> Image.Image:
    """A blurred picture of latents [height, width, channels], enlarged to `size` (width, height)."""
    small = (_with_offset(latents) @ colours).reshape(*latents.shape[:2], 3)
    return to_picture(small).resize(size, Image.Resampling.BICUBIC)


def _with_offset(latents: np.ndarray) -> np.ndarray:
    """[height * width, channels + 1], the last column ones."""
    flat = latents.reshape(-1, latents.shape[-1])
    return np.concatenate([flat, np.ones((len(flat), 1), np.float32)], 1)
