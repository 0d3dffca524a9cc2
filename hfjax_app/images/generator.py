"""Text (and a picture) to images: takes requests, admits a few of them at a time, and yields their steps."""

import logging
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hfjax_app.errors import HfjaxError, ModelUnavailable, RequestRejected
from hfjax_app.images.checkpoint import Pipeline, fetch_weights, read_empty, read_whole, recommended, revision_of
from hfjax_app.images.denoising_loop import DenoisingLoop, Drawing
from hfjax_app.images.generation_parameters import GenerationParameters, current_versions
from hfjax_app.images.interface import ImageFacts, LoraFacts, PromptLength, Recommended
from hfjax_app.images.lora import Lora, LoraFactors, read_loras
from hfjax_app.images.networks import USUAL, Storage
from hfjax_app.images.programs import DiffusionPrograms, mesh_for
from hfjax_app.images.prompt_weights import check_weights, left_out
from hfjax_app.images.request import MAX_STEPS, ImageRequest
from hfjax_app.images.single_file import single_file
from hfjax_app.images.start_picture import placement, start_image, start_pixels
from hfjax_app.images.steps import ImageStep, Waiting
from hfjax_app.limits import IMAGE_MAX_CHARACTERS, IMAGES_SERVED_TOGETHER
from hfjax_app.line import FairLine
from hfjax_app.pictures import WHITE
from hfjax_app.runtime.bundle import Bundle
from hfjax_app.runtime.checkpoints.hub import Checkpoint
from hfjax_app.runtime.memory import HeldMemory
from hfjax_app.runtime.process import prepare
from hfjax_app.runtime.program_report import ProgramReport
from hfjax_app.runtime.programs import Programs
from hfjax_app.runtime.topology import HOST_LINK
from hfjax_app.runtime.tracing import why_untraceable
from hfjax_app.runtime.warm_up import OnExpected, ignore
from hfjax_app.validation import checked_text

_LOOK_UP_S = 0.5
_log = logging.getLogger(__name__)


@contextmanager
def _in_a_line(kind: str) -> Iterator[None]:
    """Whatever goes wrong with a class of pipelines is said in one line."""
    try:
        yield
    except HfjaxError:
        raise
    except Exception as error:
        raise ModelUnavailable(f"{kind} can't run in compiled programs: {why_untraceable(error)}") from error


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a pipeline was read.

    Attributes:
        checkpoint: its weight files; None: the weights are in the pipeline.
        recommended: the settings of its model card.
        name: the checkpoint's, for generation parameters.
        revision: the checkpoint's, for generation parameters.
        loras: that may be chosen.
    """

    checkpoint: Checkpoint | None = None
    recommended: Recommended = field(default_factory=Recommended)
    name: str | None = None
    revision: str | None = None
    loras: Sequence[LoraFactors] = ()


class ImageGenerator:
    """Prompts -> pictures. Thread-safe: users alternate step by step.

    `from_pretrained` makes one and compiles its programs. `generate` compiles only for a size that is not warm, and
    yields Waiting meanwhile.

    Args:
        pipeline: a torch pipeline on the CPU; it stays usable as it is.
        origin: where it was read; None: it was made here.
        sizes: (width, height) of pictures to compile for now, besides the checkpoint's own.
        storage: of the networks' weights. Latents and the schedulers' arithmetic are float32.
        on_report: called with each program's report.
        on_expected: called before the first program is compiled, see `OnExpected`.
        bundle: programs that another process compiled; None: none are kept.
        staged: whether only the programs that draw a picture of the checkpoint's own size are compiled now, if there is
            a bundle. The others join by `warm_up.load`, and requests that need them wait.

    Raises:
        ModelUnavailable: the pipeline can't run in compiled programs; says why.
        RequestRejected: the model can't draw one of the sizes.

    Attributes:
        facts: what the model is and takes.
        warm_up: the programs that join later.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        origin: Origin | None = None,
        sizes: Sequence[tuple[int, int]] = (),
        storage: Storage = USUAL,
        on_report: Callable[[ProgramReport], None] = lambda report: None,
        on_expected: OnExpected = ignore,
        bundle: Bundle | None = None,
        staged: bool = False,
    ):
        origin = origin or Origin()
        with _in_a_line(type(pipeline).__name__):
            self._programs = DiffusionPrograms(
                pipeline,
                guidance=origin.recommended.guidance_scale,
                size=origin.recommended.size,
                programs=Programs(on_report, mesh_for(pipeline, storage), bundle=bundle),
                storage=storage,
                checkpoint=origin.checkpoint,
                sizes=sizes,
                loras=origin.loras,
                staged=staged,
                on_expected=on_expected,
            )
        self.warm_up = self._programs.warm_up
        self.facts = ImageFacts(
            name=origin.name,
            revision=origin.revision,
            versions=current_versions(self._programs.device, storage.in_words),
            recommended=origin.recommended,
            sizes=self._programs.sizes,
            latents=self._programs.latents,
            schedulers=self._programs.samplers.names,
            most={
                "steps": min(MAX_STEPS, self._programs.samplers.max_steps),
                "clip_skip": self._programs.reader.max_clip_skip,
            },
            takes_negative_prompt=self._programs.reader.takes_negative,
            takes_weights=self._programs.reader.takes_weights,
            takes_guidance=self._programs.reader.takes_guidance,
            takes_picture=self._programs.can_encode,
            edits=self._programs.edits,
            needs_picture=self._programs.needs_picture,
            loras={lora.name: LoraFacts(weight=lora.weight, digest=lora.digest) for lora in origin.loras},
        )
        with _in_a_line(type(pipeline).__name__):
            self._programs.start()
        self._line = FairLine(IMAGES_SERVED_TOGETHER)
        self._denoising_loop = DenoisingLoop(self._programs)
        self._weight_bytes = self._programs.weight_bytes
        if sent := self._programs.sent_bytes:
            _log.info(
                "text encoders are in the host's memory: a new text sends %.2f GB to the device, %.2f s at %.0f GB/s",
                sent / 1e9,
                sent / HOST_LINK,
                HOST_LINK / 1e9,
            )
        for _ in self._warming():
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
            loras: that may be chosen for pictures.
            options: the constructor's sizes, storage, on_report, on_expected, bundle and staged.

        Raises:
            ModelUnavailable: in one line: which model, why not, and what would help.
        """
        prepare()
        is_file = single_file(source) is not None
        pipeline = read_whole(source) if is_file else read_empty(source)
        factors = read_loras(pipeline, loras)  # before the weights are downloaded
        checkpoint = None if is_file else fetch_weights(source, pipeline)
        name = Path(source).name if Path(source).exists() else os.fspath(source)
        origin = Origin(
            checkpoint=checkpoint,
            recommended=recommended(source, pipeline),
            name=name,
            revision=revision_of(source),
            loras=factors,
        )
        return cls(pipeline, origin=origin, **options)

    @property
    def held_memory(self) -> HeldMemory:
        """What the weights take, with the merges of LoRAs that are kept."""
        return HeldMemory(weights=self._weight_bytes + self._programs.merged.bytes)

    def _warming(self) -> Generator[ImageStep | Waiting, None, None]:
        """A first picture, of as few steps as the scheduler can make."""
        try:
            return self.generate(self.facts.trial(steps=1, seed=0, loras=""))
        except RequestRejected:
            return self.generate(self.facts.trial(steps=2, seed=0, loras=""))

    @property
    def steps(self) -> int:
        """The denoising steps of all pictures so far."""
        return self._denoising_loop.steps

    @property
    def steps_per_s(self) -> float | None:
        """Of the latest request that has ended; None: none has."""
        return self._denoising_loop.steps_per_s

    @property
    def warm_sizes(self) -> tuple[tuple[int, int], ...]:
        """The sizes whose programs are compiled."""
        return self._programs.warm_sizes

    @property
    def offered_sizes(self) -> tuple[tuple[int, int], ...]:
        """The warm sizes and those that will be: of the settings."""
        return self._programs.offered_sizes

    def length(self, prompt: str) -> PromptLength:
        """How long a prompt is for the text encoder.

        Raises:
            RequestRejected: it is no prompt that a request may have.
        """
        checked_text(prompt, "prompt", IMAGE_MAX_CHARACTERS, may_be_blank=True)
        check_weights(prompt)
        return self._programs.reader.length(prompt)

    def generate(
        self, request: ImageRequest, *, previews: bool = True, client: str = ""
    ) -> Generator[ImageStep | Waiting, None, None]:
        """Draw pictures. Closing the generator between two steps ends the work there.

        The call itself checks what depends on the model, before the first step.

        Args:
            request: what to draw.
            previews: whether the caller may look at the steps' previews; without, they are empty.
            client: who asks; clients take turns.

        Yields:
            Waiting while the request waits, then an ImageStep for each step, the last one with the pictures.

        Raises:
            RequestRejected: the value and the limit; nothing was computed.
            ModelUnavailable: while drawing: latents or pixels are not finite.
        """
        completed, image = self.facts.completed(request), request.image
        pixels = edited = None
        if image is not None and self.facts.edits:
            picture = start_image(image, completed.size, request.background)
            edited = self._programs.call.reference_pixels(picture)
        elif image is not None:
            pixels = start_pixels(image, completed.size, request.background)
        schedule = self._programs.samplers.schedule(
            completed.scheduler, completed.steps, completed.size, None if pixels is None else completed.strength
        )
        place = placement(completed, self.facts.scale)
        drawing = Drawing(
            request=completed,
            schedule=schedule,
            pixels=pixels if place is None else place.pixels,
            edited=edited,
            place=place,
            parameters=GenerationParameters.of(completed, place, self.facts),
            previews=previews,
        )
        return self._served(drawing, client)

    def _served(self, drawing: Drawing, client: str) -> Generator[ImageStep | Waiting, None, None]:
        # First, so that it holds no place in the line meanwhile.
        programs = yield from self._programs.programs_for(drawing.request)
        place = self._line.join(client)
        try:
            for number in place.wait(_LOOK_UP_S):
                yield Waiting(reason=f"number {number} in the line")
            yield from self._denoising_loop.draw(drawing, programs, self._notice(drawing))
        finally:
            place.leave()

    def _notice(self, drawing: Drawing) -> str | None:
        request = drawing.request
        texts, size = {"prompt": request.prompt, "negative prompt": request.negative_prompt}, request.size
        cut = {name: end for name, text in texts.items() if (end := self._programs.reader.cut(text, size))}
        notes = [f"the end of the {name} was not read: {end!r}" for name, end in cut.items()]
        for name, text in texts.items():
            lines = left_out(text, takes_weights=self.facts.takes_weights, loras=self.facts.loras)
            notes += [f"{name}: {line}" for line in lines]
        if (background := drawing.parameters.values["background"]) is not None:
            colour = "white" if background == WHITE else background
            notes.append(f"what is transparent in the picture to start from was {colour}")
        return "; ".join(notes) or None
