"""Text to image, step by step: checks a request, runs the compiled programs in fair turns, yields each step's preview.

The networks and the scheduler's numbers are in `pipeline.py` and `schedule.py`; this file draws.
"""

import functools
import os
import secrets
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

import jax
import numpy as np
from diffusers import StableDiffusionPipeline
from PIL import Image

from hfjax_app.errors import ModelUnavailable, RequestRejected
from hfjax_app.images import preview
from hfjax_app.images.pipeline import DiffusionPrograms, read
from hfjax_app.images.schedule import Schedule, probe
from hfjax_app.images.turns import Turns
from hfjax_app.runtime.process import prepare
from hfjax_app.runtime.programs import ProgramReport
from hfjax_app.text import checked_text

MAX_CHARACTERS = 1_000
MAX_STEPS = 100
MAX_GUIDANCE = 20.0
MAX_SEED = 2**64 - 1


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageStep:
    """What is known after one denoising step.

    Attributes:
        step: 1 for the first.
        steps: how many there will be (some schedulers make one more than asked for).
        seconds: since the request began.
        preview: the picture that the model expects, at the picture's size; the picture itself at the last step.
        image: the picture, at the last step only.
        pixels: the picture before rounding, float32 [height, width, 3] from 0 to 1, at the last step only.
        seed: of the noise; give it again to get the same picture. Meaningless where the caller gave the latents.
        notice: what the user should know of this request, such as a prompt that was cut; None where there is nothing.
    """

    step: int
    steps: int
    seconds: float
    preview: Image.Image
    image: Image.Image | None
    pixels: np.ndarray | None
    seed: int
    notice: str | None


class ImageGenerator:
    """Prompts -> pictures. Thread-safe: users alternate step by step.

    Made by `from_pretrained`. Everything compiles there; `generate` never does.

    Args:
        pipeline: a loaded torch pipeline with its weights on the CPU.
        on_report: called with each program's report during warm-up.

    Raises:
        ModelUnavailable: the pipeline can't run in compiled programs; says why.
    """

    def __init__(
        self, pipeline: StableDiffusionPipeline, *, on_report: Callable[[ProgramReport], None] = lambda report: None
    ):
        self._programs = DiffusionPrograms(pipeline, on_report)
        self._device = Turns()
        self._tokenizing = threading.Lock()
        self._schedule = functools.lru_cache(maxsize=MAX_STEPS)(self._probed)
        self._colours: np.ndarray | None = None
        if max(self._programs.size) > preview.MAX_DECODED:
            self._colours = preview.fit_colours(
                lambda latents: self._programs.decode(jax.device_put(latents)), self._programs.latent_shape
            )
        for _ in self.generate("warm-up", steps=1, seed=0):
            pass

    @classmethod
    def from_pretrained(
        cls,
        source: str | os.PathLike[str],
        *,
        on_report: Callable[[ProgramReport], None] = lambda report: None,
    ) -> "ImageGenerator":
        """Load a Stable Diffusion checkpoint from a folder or by hub id, compile its programs and run each once.

        Raises:
            ModelUnavailable: in one line: which model, why not, and what would help.
        """
        prepare()
        return cls(read(source), on_report=on_report)

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the pictures, in pixels."""
        return self._programs.size

    @property
    def latent_shape(self) -> tuple[int, int, int, int]:
        """(1, channels, height, width) of the latents."""
        return self._programs.latent_shape

    @property
    def max_steps(self) -> int:
        """The most steps that may be asked for."""
        return min(MAX_STEPS, self._programs.max_train_steps)

    def generate(
        self,
        prompt: str,
        *,
        negative_prompt: str = "",
        steps: int = 20,
        guidance_scale: float = 7.5,
        seed: int | None = None,
        latents: np.ndarray | None = None,
    ) -> Generator[ImageStep, None, None]:
        """Draw a picture; closing the generator between two steps ends the work there.

        The arguments are checked by the call itself, before the first step is asked for.

        Args:
            prompt: what to draw; what the text encoder can't read is cut, and the steps' `notice` says so.
            negative_prompt: what to stay away from; may be empty.
            steps: denoising steps, 1 to `max_steps`.
            guidance_scale: how closely to follow the prompt, 0 to MAX_GUIDANCE; 1 and less mean no guidance, as in
                diffusers.
            seed: 0 to MAX_SEED; None draws one of 32 bits, so that it survives a text field of JavaScript. The noise is
                NumPy's (PCG64, standard normal, float32), the same on every device.
            latents: the noise itself instead, unit normal, float [1, channels, height, width].

        Yields:
            One ImageStep for each step, the last one with the image.

        Raises:
            RequestRejected: the value and the limit; nothing was computed.
            ModelUnavailable: while drawing: the model made something that is no number.
        """
        checked_text(prompt, "prompt", MAX_CHARACTERS)
        checked_text(negative_prompt, "negative prompt", MAX_CHARACTERS, may_be_blank=True)
        steps = _whole_number("steps", steps, 1, self.max_steps)
        if seed is None:
            seed = secrets.randbits(32)
        seed = _whole_number("seed", seed, 0, MAX_SEED)
        real = isinstance(guidance_scale, int | float | np.floating) and not isinstance(guidance_scale, bool)
        if not real or not 0 <= guidance_scale <= MAX_GUIDANCE:
            raise RequestRejected(f"guidance scale = {guidance_scale!r}: must be a number from 0 to {MAX_GUIDANCE:g}")
        noise = self._noise(seed) if latents is None else self._checked_latents(latents)
        try:
            schedule = self._schedule(steps)
        except Exception as error:
            name = type(self._programs.scheduler).__name__
            raise RequestRejected(f"steps = {steps}: {name} can't do that many: {error}") from error
        return self._draw(prompt, negative_prompt, schedule, max(1.0, float(guidance_scale)), seed, noise)

    def _draw(
        self,
        prompt: str,
        negative_prompt: str,
        schedule: Schedule,
        guidance_scale: float,
        seed: int,
        noise: np.ndarray,
    ) -> Generator[ImageStep, None, None]:
        started = time.perf_counter()
        programs = self._programs
        with self._tokenizing:  # a fast tokenizer keeps its padding as state, which threads must not share
            negative, negative_count = programs.tokens(negative_prompt)
            positive, positive_count = programs.tokens(prompt)
        notice = self._notice({"prompt": positive_count, "negative prompt": negative_count})
        with self._device:
            states = programs.encode(negative, positive)
            latents, history = programs.start(noise * np.float32(schedule.noise_scale))
        for i in range(schedule.steps):
            last = i == schedule.steps - 1
            with self._device:
                latents, history, clean = programs.denoise(
                    latents,
                    history,
                    states,
                    schedule.timesteps[i],
                    schedule.input_scales[i],
                    schedule.coefficients[i],
                    guidance_scale,
                )
                pixels = programs.decode(latents) if last else None
                shown = None if last else self._preview(clean)
            if pixels is not None:
                if not np.isfinite(pixels).all():
                    raise ModelUnavailable("the image model made pixels that are no numbers (NaN); try another seed")
                shown = preview.to_picture(pixels)
            yield ImageStep(
                step=i + 1,
                steps=schedule.steps,
                seconds=time.perf_counter() - started,
                preview=shown,
                image=shown if last else None,
                pixels=pixels,
                seed=seed,
                notice=notice,
            )

    def _preview(self, clean: jax.Array) -> Image.Image:
        if self._colours is None:
            return preview.to_picture(self._programs.decode(clean))
        return preview.estimate(np.asarray(clean), self._colours, self._programs.size)

    def _noise(self, seed: int) -> np.ndarray:
        return np.random.Generator(np.random.PCG64(seed)).standard_normal(self.latent_shape, np.float32)

    def _checked_latents(self, latents: np.ndarray) -> np.ndarray:
        array = np.array(latents, np.float32)
        if array.shape != self.latent_shape or not np.isfinite(array).all():
            raise RequestRejected(f"latents of shape {array.shape}: must be finite, of shape {self.latent_shape}")
        return array

    def _probed(self, steps: int) -> Schedule:
        return probe(self._programs.scheduler, steps).padded(self._programs.depth)

    def _notice(self, counts: dict[str, int]) -> str | None:
        limit = self._programs.token_limit
        cut = [f"the {name} has {count} tokens" for name, count in counts.items() if count > limit]
        return f"{' and '.join(cut)}, the model reads {limit}: the end was not read" if cut else None


def _whole_number(name: str, value: object, low: int, high: int) -> int:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not low <= value <= high:
        raise RequestRejected(f"{name} = {value!r}: must be a whole number from {low} to {high}")
    return int(value)
