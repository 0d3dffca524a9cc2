"""A pipeline's call that starts from a picture, of diffusers' own class for it: how many steps it makes, and from what.

The class is the sibling of the text-to-image class, with the same networks: `FluxImg2ImgPipeline` of `FluxPipeline`.
Its own lines say which steps of a strength are left out, and how a picture becomes a sample of the scheduler. What it
does in a pass of its loop is what the text-to-image class does, and the tests compare both.
"""

import inspect
from dataclasses import replace
from typing import Any

import diffusers
import torch
from diffusers import DiffusionPipeline
from PIL import Image

from hfjax_app.errors import RequestRejected, first_line
from hfjax_app.images.checkpoint import Pipeline
from hfjax_app.images.pipeline_call import PipelineCall, Size
from hfjax_app.images.schedule import Timing
from hfjax_app.images.stand_ins import (
    Ended,
    Noises,
    TakesData,
    UnreadPicture,
    having_read,
    scheduler_like,
    stand_in,
    usual_scale,
    value_of,
)


class PictureCall(PipelineCall):
    """The parts of a call that starts from a picture.

    Args:
        pipeline: of a class for that.
        answers: of a text-to-image call with the same text encoders, see `PipelineCall.answers`.
    """

    def __init__(self, pipeline: Pipeline, answers: Any):
        super().__init__(pipeline)
        self.answers = answers
        self._blank = UnreadPicture(self.vae, 0.0)

    def begun(self, steps: int, size: Size, strength: float) -> Timing:
        """How the pipeline sets its scheduler where a share of the picture is replaced.

        Raises:
            RequestRejected: the strength leaves no step.
            Exception: the pipeline or its scheduler can't do this number of steps.
        """
        whole = self.timing(steps, size, strength=1.0)
        try:
            part = self.timing(steps, size, strength=strength)
        except Exception as error:
            raise RequestRejected(f"strength = {strength!r}: {first_line(error)}") from error
        return replace(part, left_out=whole.left_out, start=part.left_out - whole.left_out)

    def encoded(self, vae: Any, pixels: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """A picture as a clean sample of the scheduler. Is traced.

        Args:
            vae: the autoencoder, with its weights.
            pixels: [1, 3, height, width] from -1 to 1.
            noise: unit normal, samples the picture's latents from their distribution.
        """

        def step(output: Any, time: Any, sample: Any, *_: Any, **__: Any) -> Any:
            raise Ended(sample)

        drawn = iter([noise])  # a class draws the picture's latents before the noise, which is left out here
        noises = Noises(lambda shape: next(drawn, noise).reshape(shape))
        scheduler = scheduler_like(self.pipeline.scheduler, step=step)
        pipeline = self.unprompted(
            scheduler, vae=vae, device=pixels.device, image_processor=having_read(self.pipeline, pixels)
        )
        with TakesData(is_traced=True), noises:
            size = (pixels.shape[-1], pixels.shape[-2])
            arguments = self.arguments(self.usual_prompts, size, usual_scale(set()), "latent")
            sample: torch.Tensor = value_of(lambda: pipeline(**arguments))
        return sample

    def arguments(self, prompts: Any, size: Size | None, *more: Any) -> dict[str, Any]:
        assert size is not None, "a drawing has a size"
        return super().arguments(prompts, size, *more) | {"image": Image.new("RGB", size), "strength": 1.0}

    def with_stand_ins(self, forward: Any, scheduler: Any, **members: Any) -> Any:
        vae = stand_in(self.vae, encode=self._blank.encode, to=lambda *_, **__: None, dtype=torch.float32)
        return super().with_stand_ins(forward, scheduler, **{"vae": vae} | members)


def picture_call(pipeline: Pipeline, call: PipelineCall) -> PictureCall | None:
    """The call of a text-to-image pipeline's sibling that starts from a picture; None where diffusers has none.

    Args:
        pipeline: of the text-to-image class.
        call: its own; a prompt was read.
    """
    kind = getattr(diffusers, type(pipeline).__name__.removesuffix("Pipeline") + "Img2ImgPipeline", None)
    if not isinstance(kind, type) or not issubclass(kind, DiffusionPipeline):
        return None
    known = {**pipeline.config, **pipeline.components}  # type: ignore[attr-defined]
    accepted = inspect.signature(kind).parameters
    sibling: Any = kind(**{name: value for name, value in known.items() if name in accepted})
    sibling.set_progress_bar_config(disable=True)
    return PictureCall(sibling, call.answers)
