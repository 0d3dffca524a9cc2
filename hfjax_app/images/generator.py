"""Text (and a picture) to images: takes requests, admits a few of them at a time, and yields their steps.

Does not check values (`request.py`) and does not run the steps (`denoising_loop.py`).
"""

import os
from collections.abc import Callable, Generator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hfjax_app.errors import RequestRejected
from hfjax_app.images.admission_queue import AdmissionQueue
from hfjax_app.images.checkpoint import (
    Pipeline,
    Recommended,
    fetch_weights,
    read_empty,
    read_whole,
    recommended,
    revision_of,
)
from hfjax_app.images.denoising_loop import DenoisingLoop
from hfjax_app.images.generation_parameters import GenerationParameters, current_versions, digest
from hfjax_app.images.lora import Lora, merge, revision_with
from hfjax_app.images.mask import to_text
from hfjax_app.images.pipeline import DiffusionPrograms
from hfjax_app.images.prompt_weights import has_weights
from hfjax_app.images.request import (
    MAX_GUIDANCE,
    MAX_SEED,
    MAX_STEPS,
    VARIATION,
    ImageRequest,
    checked_picture,
    checked_prompts,
    checked_seeds,
    real_number,
    whole_number,
)
from hfjax_app.images.schedule import Schedule
from hfjax_app.images.single_file import single_file
from hfjax_app.images.size_compiler import SizeCompiler
from hfjax_app.images.sizes import Sizes
from hfjax_app.images.steps import ImageStep, Waiting
from hfjax_app.limits import IMAGES_SERVED_TOGETHER
from hfjax_app.pictures.colours import WHITE, checked_colour, is_transparent
from hfjax_app.runtime.bundle import Bundle
from hfjax_app.runtime.checkpoints.hub import Checkpoint
from hfjax_app.runtime.dtype_policy import DTYPES, default_dtype
from hfjax_app.runtime.held_memory import HeldMemory
from hfjax_app.runtime.process import prepare
from hfjax_app.runtime.program_report import ProgramReport
from hfjax_app.runtime.seams.torchax import jax_dtype
from hfjax_app.runtime.warm_up import OnExpected, ignore

_LOOK_UP_S = 0.5


class ImageGenerator:
    """Prompts -> pictures. Thread-safe: users alternate step by step.

    `from_pretrained` makes one and compiles its programs. `generate` compiles only for a size that is not warm, and
    yields Waiting meanwhile.

    Args:
        pipeline: a torch pipeline on the CPU; it stays usable as it is.
        checkpoint: its weight files; None: the weights are in the pipeline.
        advice: the settings that its model card recommends.
        name: the checkpoint's, for generation parameters.
        revision: the checkpoint's, for generation parameters.
        sizes: (width, height) of pictures to compile for now, besides the checkpoint's own.
        dtype: of the networks' weights: "float32", "bfloat16", "float16" or "auto": float32 on CPU, bfloat16 on TPU and
            GPU. Latents and the schedulers' arithmetic are float32.
        on_report: called with each program's report.
        on_expected: called before the first program is compiled, see `OnExpected`.
        bundle: programs that another process compiled; None: none are kept.
        staged: whether only the programs that draw a picture of the checkpoint's own size are compiled now, if there is
            a bundle. The others join by `warm_up.load`, and requests that need them wait.

    Raises:
        ModelUnavailable: the pipeline can't run in compiled programs; says why.
        RequestRejected: the model can't draw one of the sizes.

    Attributes:
        recommended: the steps and guidance scale of its model card.
        name: the checkpoint's, or None.
        revision: the checkpoint's, or None.
        versions: of everything else that a picture's pixels depend on.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        checkpoint: Checkpoint | None = None,
        advice: Recommended | None = None,
        name: str | None = None,
        revision: str | None = None,
        sizes: Sequence[tuple[int, int]] = (),
        dtype: str = "auto",
        on_report: Callable[[ProgramReport], None] = lambda report: None,
        on_expected: OnExpected = ignore,
        bundle: Bundle | None = None,
        staged: bool = False,
    ):
        self.recommended = advice or Recommended()
        self.name, self.revision = name, revision
        self._programs = DiffusionPrograms(
            pipeline,
            on_report,
            alone=self.recommended.guidance_scale <= 1,
            dtype=jax_dtype(default_dtype() if dtype == "auto" else DTYPES[dtype]),
            checkpoint=checkpoint,
            bundle=bundle,
            sizes=sizes,
            staged=staged,
            on_expected=on_expected,
        )
        self.warm_up = self._programs.warm_up
        self.versions = current_versions(self._programs.device, self._programs.dtype.name)
        self._programs.start()
        self._queue = AdmissionQueue(IMAGES_SERVED_TOGETHER)
        self._size_compiler = SizeCompiler(self._programs)
        self._denoising_loop = DenoisingLoop(self._programs)
        for _ in self.generate("warm-up", steps=1, seed=0):
            pass
        self._denoising_loop.steps_per_s = None

    @classmethod
    def from_pretrained(
        cls,
        source: str | os.PathLike[str],
        *,
        loras: Sequence[Lora] = (),
        **options: Any,
    ) -> "ImageGenerator":
        """Load a checkpoint, compile its programs and run each once.

        Args:
            source: a folder, a hub id, or a single .safetensors file of a whole Stable Diffusion.
            loras: merged into the weights.
            options: the constructor's sizes, dtype, on_report, on_expected, bundle and staged.

        Raises:
            ModelUnavailable: in one line: which model, why not, and what would help.
        """
        prepare()
        checkpoint = None
        if loras or single_file(source):
            pipeline = read_whole(source)
            merge(pipeline, loras)
        else:
            pipeline = read_empty(source)
            checkpoint = fetch_weights(source, pipeline)
        name = Path(source).name if Path(source).exists() else os.fspath(source)
        return cls(
            pipeline,
            checkpoint=checkpoint,
            advice=recommended(source),
            name=" + ".join([name, *(lora.name for lora in loras)]),
            revision=revision_with(revision_of(source), loras),
            **options,
        )

    @cached_property
    def held_memory(self) -> HeldMemory:
        """What the weights take."""
        return HeldMemory(weights=self._programs.weight_bytes)

    @property
    def steps(self) -> int:
        """The denoising steps of all pictures so far."""
        return self._denoising_loop.steps

    @property
    def steps_per_s(self) -> float | None:
        """Of the latest request that has ended; None: none has."""
        return self._denoising_loop.steps_per_s

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels of the pictures that the model was trained for."""
        return self._programs.size

    @property
    def sizes(self) -> Sizes:
        """The limits on a picture's size."""
        return self._programs.sizes

    @property
    def warm_sizes(self) -> tuple[tuple[int, int], ...]:
        """The sizes whose programs are compiled."""
        return self._programs.warm_sizes

    @property
    def offered_sizes(self) -> tuple[tuple[int, int], ...]:
        """The warm sizes and those that will be: of the settings."""
        return self._programs.offered_sizes

    @property
    def schedulers(self) -> tuple[str, ...]:
        """The names of the schedulers that may be chosen, the checkpoint's own first."""
        return self._programs.samplers.names

    @property
    def latent_shape(self) -> tuple[int, int, int, int]:
        """(1, channels, height, width) of the latents of a picture of `size`."""
        return self._programs.sized(self.size).latent_shape

    @property
    def max_steps(self) -> int:
        """The most steps of a request."""
        return min(MAX_STEPS, self._programs.samplers.max_steps)

    @property
    def takes_negative_prompt(self) -> bool:
        """Whether the model takes a negative prompt."""
        return self._programs.reader.takes_negative

    @property
    def takes_weights(self) -> bool:
        """Whether weights of words, "(word:1.3)", are read; else they are text."""
        return self._programs.reader.takes_weights

    def nearest_size(self, width: int, height: int) -> tuple[int, int]:
        """The (width, height) that the model takes nearest to these."""
        return self._programs.sizes.nearest(width, height)

    def generate(
        self,
        prompt: str,
        *,
        negative_prompt: str = "",
        steps: int = 20,
        guidance_scale: float = 7.5,
        seed: int | None = None,
        images: int = 1,
        width: int | None = None,
        height: int | None = None,
        scheduler: str | None = None,
        image: Image.Image | None = None,
        mask: Image.Image | None = None,
        strength: float = 0.8,
        background: str = WHITE,
        variation_of: int | None = None,
        variation: float = VARIATION,
        latents: np.ndarray | None = None,
        previews: bool = True,
        client: str = "",
    ) -> Generator[ImageStep | Waiting, None, None]:
        """Draw pictures. Closing the generator between two steps ends the work there.

        The call itself checks the arguments, before the first step.

        Args:
            prompt: what to draw; "(word:1.3)" weights a word, where the model's text encoders are CLIP's. The text
                encoder's limit cuts it, and the steps' `notice` says so.
            negative_prompt: what to avoid; may be empty.
            steps: denoising steps, 1 to `max_steps`.
            guidance_scale: how closely to follow the prompt, 0 to MAX_GUIDANCE; 1 and less mean no guidance, as in
                diffusers.
            seed: of the first picture, 0 to MAX_SEED; the others' follow it. None: a random one of 32 bits, which
                JavaScript can represent.
            images: how many pictures, 1 to MAX_IMAGES. Each equals the one that its seed gives alone.
            width: in pixels, a multiple of 8 or of what the model takes; None: the model's own.
            height: the same.
            scheduler: one of `schedulers`; None: the checkpoint's own.
            image: a picture to start from; it is scaled and cut to the size.
            mask: with `image`: white where to draw; the rest of the picture stays.
            strength: with `image`: how much of it to replace, 0 to 1; this share of `steps` is made.
            background: with `image`: the colour of what is transparent in it, "#rrggbb"; the steps' `notice` says so.
            variation_of: a seed: each picture begins with noise between that of this seed and that of its own.
            variation: with `variation_of`: how far from that seed's noise, 0 (its picture) to 1 (the own seed's).
            latents: the noise of the first step itself, unit normal, float [1, channels, height, width].
            previews: whether the caller may look at the steps' previews; without, they are empty.
            client: who asks; clients take turns.

        Yields:
            Waiting while the request waits, then an ImageStep for each step, the last one with the pictures.

        Raises:
            RequestRejected: the value and the limit; nothing was computed.
            ModelUnavailable: while drawing: latents or pixels are not finite.
        """
        prompt, negative_prompt = checked_prompts(prompt, negative_prompt)
        if negative_prompt.strip() and not self.takes_negative_prompt:
            raise RequestRejected("negative prompt: this model takes none; leave it empty")
        size = self._programs.sizes.checked(width, height)
        colour = checked_colour("background", background)
        pixels, drawn = checked_picture(image, mask, size, self._programs.scale, colour)
        name = self._programs.samplers.default if scheduler is None else scheduler
        request = ImageRequest(
            prompt=prompt,
            negative_prompt=negative_prompt,
            steps=whole_number("steps", steps, 1, self.max_steps),
            guidance_scale=real_number("guidance scale", guidance_scale, 0, MAX_GUIDANCE),
            seeds=checked_seeds(seed, images),
            size=size,
            scheduler=name,
            image=pixels,
            background=colour if image is not None and is_transparent(image) else None,
            mask=drawn,
            strength=real_number("strength", strength, 0, 1),
            variation_of=None if variation_of is None else whole_number("variation of", variation_of, 0, MAX_SEED),
            variation=real_number("variation", variation, 0, 1),
        )
        if request.start == request.steps:
            raise RequestRejected(f"strength = {strength!r}: of {steps} steps it leaves none; raise it or the steps")
        schedule = self._programs.samplers.schedule(name, request.steps, request.start)
        given = None if latents is None else self._checked_latents(latents, request)
        parameters = GenerationParameters(
            prompt=prompt,
            negative_prompt=negative_prompt,
            steps=request.steps,
            guidance_scale=request.guidance_scale,
            seed=request.seeds[0],
            width=size[0],
            height=size[1],
            scheduler=name,
            strength=None if image is None else request.strength,
            image=digest(image),
            mask=None if drawn is None else to_text(drawn),
            background=request.background,
            variation_of=request.variation_of,
            variation=None if request.variation_of is None else request.variation,
            model=self.name,
            revision=self.revision,
            versions=self.versions,
        )
        return self._served(request, parameters, schedule, given, previews, client)

    def _served(
        self,
        request: ImageRequest,
        parameters: GenerationParameters,
        schedule: Schedule,
        given: np.ndarray | None,
        previews: bool,
        client: str,
    ) -> Generator[ImageStep | Waiting, None, None]:
        # First, so that it holds no place in the queue meanwhile.
        programs = yield from self._size_compiler.programs_for(request)
        ticket = self._queue.join(client)
        try:
            for place in self._queue.wait(ticket, _LOOK_UP_S):
                yield Waiting(reason=f"number {place} in the line")
            notice = self._notice(request)
            yield from self._denoising_loop.draw(
                request, parameters, schedule, programs, given=given, previews=previews, notice=notice
            )
        finally:
            self._queue.leave(ticket)

    def _checked_latents(self, latents: np.ndarray, request: ImageRequest) -> np.ndarray:
        array = np.array(latents, np.float32)
        shape = (*self.latent_shape[:2], *(side // self._programs.scale for side in reversed(request.size)))
        if array.shape != shape or not np.isfinite(array).all():
            raise RequestRejected(f"latents of shape {array.shape}: must be finite, of shape {shape}")
        return array

    def _notice(self, request: ImageRequest) -> str | None:
        texts = {"prompt": request.prompt, "negative prompt": request.negative_prompt}
        cut = {name: end for name, text in texts.items() if (end := self._programs.reader.cut(text))}
        notes = [f"the end of the {name} was not read: {end!r}" for name, end in cut.items()]
        if not self.takes_weights and any(map(has_weights, texts.values())):
            notes.append("this model reads weights such as (word:1.3) as text")
        if request.background is not None:
            colour = "white" if request.background == WHITE else request.background
            notes.append(f"what is transparent in the picture to start from was {colour}")
        return "; ".join(notes) or None
