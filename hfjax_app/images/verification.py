"""Replay and verify: draw a picture again from the generation parameters in its PNG file, and compare every pixel."""

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from hfjax_app.errors import RequestRejected
from hfjax_app.images.generation_parameters import GenerationParameters, read_png
from hfjax_app.images.interface import ImageFacts, ImageModel
from hfjax_app.images.request import ImageRequest
from hfjax_app.images.start_picture import digest, placement, result_size
from hfjax_app.images.steps import ImageStep, Waiting

# Chunks of a PNG file that change how its pixels are shown; files from here have none.
_DISPLAY_CHUNKS = ("transparency", "icc_profile", "gamma", "chromaticity")


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """The result of a replay.

    Attributes:
        image: the picture that was drawn now.
        parameters: of both pictures.
        differing: the number of pixels that differ.
        largest: the largest difference of a colour channel, 0 to 255.
        more: what the file has besides plain pixels, such as transparency, which changes how it is shown.
        changes: versions that have changed since the first picture, such as "jax 0.10.1, now 0.10.2".
    """

    image: Image.Image
    parameters: GenerationParameters
    differing: int
    largest: int
    more: tuple[str, ...]
    changes: tuple[str, ...]

    @property
    def is_identical(self) -> bool:
        return self.differing == 0 and not self.more

    @property
    def summary(self) -> str:
        """The result in one line, for the user."""
        if self.is_identical:
            return f"Identical: all {self.image.width * self.image.height:,} pixels are the same."
        if self.more:
            return f"Not identical: the file was changed, it has {' and '.join(self.more)}."
        reason = (
            f" Since then: {'; '.join(self.changes)}." if self.changes else " The file was changed, or its settings."
        )
        return f"Not identical: {self.differing:,} pixels differ, by up to {self.largest} of 255.{reason}"


def replay(
    generator: ImageModel,
    png: object,
    *,
    image: Image.Image | None = None,
    mask: Image.Image | None = None,
    client: str = "",
) -> Generator[ImageStep | Waiting | Comparison, None, None]:
    """Draw a PNG file's picture again. The call itself checks the file.

    Args:
        generator: of the same checkpoint.
        png: the file's bytes.
        image: the picture that it started from, if any.
        mask: the mask, if any; needed only for older files, which do not hold it.
        client: who asks; clients take turns.

    Yields:
        what `ImageGenerator.generate` yields, and a Comparison at the end.

    Raises:
        RequestRejected: no parameters inside, unusable ones, or those of another model or picture.
    """
    original, parameters = read_png(png)
    facts = generator.facts
    if parameters.mask is None:
        _check_size(original, (parameters.values["width"], parameters.values["height"]))
    _, own = facts.drawn_by(facts.chosen(parameters.values.get("loras"), parameters.values["prompt"]))
    if parameters.revision != own:
        model, revision = parameters.model or "an unnamed model", parameters.revision or "unknown"
        raise RequestRejected(f"the picture was made by {model}, revision {revision}; this one is revision {own}")
    if parameters.image is not None and digest(image) != parameters.image:
        raise _needed("picture", image)
    request = _request_again(parameters, image if parameters.image else None, mask, facts)
    _check_size(original, result_size(facts.completed(request)))
    changes = tuple(parameters.differences(facts.versions))
    return _compared(generator.generate(request, client=client), original, parameters, changes)


def _check_size(original: Image.Image, size: tuple[int, int]) -> None:
    if original.size != size:
        raise RequestRejected(
            f"the picture is {original.width} x {original.height}, and its settings say {size[0]} x {size[1]}: it was "
            "changed, or they were"
        )


def _request_again(
    parameters: GenerationParameters, image: Image.Image | None, given: Image.Image | None, facts: ImageFacts
) -> ImageRequest:
    """The request with the picture's mask in pixels, which has the same latents as the painted one."""
    latents = parameters.latent_mask()
    if latents is None:
        if parameters.mask is not None and digest(given) != parameters.mask:
            raise _needed("mask", given)
        return replace(parameters, box=None).request(image, given if parameters.mask else None)
    scale, (wide, tall) = facts.scale, (parameters.values["width"], parameters.values["height"])
    if latents.shape != (tall / scale, wide / scale):
        raise RequestRejected(
            f"the picture's settings are forged or damaged: mask of {latents.shape[1]} x {latents.shape[0]} for a "
            f"picture of {wide} x {tall}, where {scale} x {scale} pixels are one of it"
        )
    request = parameters.request(image, Image.fromarray(latents.repeat(scale, 0).repeat(scale, 1)))
    if given is not None:
        painted = placement(facts.completed(replace(request, mask=given, box=None)), scale)
        if painted is None or not np.array_equal(painted.mask, latents) or painted.box != request.box:
            raise _needed("mask", given)
    return request


def _needed(name: str, given: Image.Image | None) -> RequestRejected:
    missing = "upload it" if given is None else "the uploaded one is another"
    return RequestRejected(f"the picture was drawn from a {name} that is needed to draw it again: {missing}")


def _compared(
    steps: Generator[ImageStep | Waiting, None, None],
    original: Image.Image,
    parameters: GenerationParameters,
    changes: tuple[str, ...],
) -> Generator[ImageStep | Waiting | Comparison, None, None]:
    again = None
    for step in steps:
        yield step
        if isinstance(step, ImageStep):
            again = step.image
    assert again is not None  # the last step has it
    more = [f"the colours {original.mode}, not RGB"] if original.mode != "RGB" else []
    more += [f"{frames} frames"] if (frames := original.info["frames"]) > 1 else []
    more += [name.replace("_", " ") for name in _DISPLAY_CHUNKS if name in original.info]
    apart = np.abs(np.asarray(original.convert("RGB"), np.int16) - np.asarray(again, np.int16))
    yield Comparison(
        image=again,
        parameters=parameters,
        differing=int(apart.any(2).sum()),
        largest=int(apart.max()),
        more=tuple(more),
        changes=changes,
    )
