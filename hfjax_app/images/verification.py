"""Replay and verify: draw a picture again from the recipe in its PNG file, and compare every pixel."""

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from PIL import Image

from hfjax_app.errors import RequestRejected
from hfjax_app.images.generator import ImageGenerator
from hfjax_app.images.recipe import Recipe, digest, read_png
from hfjax_app.images.request import checked_mask
from hfjax_app.images.steps import ImageStep, Waiting

# Chunks of a PNG file by which its pixels are shown as others; ours have none.
_SEEN_OTHERWISE = ("transparency", "icc_profile", "gamma", "chromaticity")


@dataclass(frozen=True, kw_only=True, eq=False)
class Verdict:
    """What came of a replay.

    Attributes:
        image: the picture as it comes out now.
        recipe: what both were drawn from.
        differing: pixels that are not the same.
        largest: the largest difference of any colour channel, 0 to 255.
        more: what the file has besides plain pixels, such as transparency: it is seen otherwise than it is compared.
        changes: what was another when the first one was made, such as "jax 0.10.1, now 0.10.2".
    """

    image: Image.Image
    recipe: Recipe
    differing: int
    largest: int
    more: tuple[str, ...]
    changes: tuple[str, ...]

    @property
    def is_identical(self) -> bool:
        return self.differing == 0 and not self.more

    @property
    def summary(self) -> str:
        """One line for people."""
        if self.is_identical:
            return f"Identical: all {self.image.width * self.image.height:,} pixels are the same."
        if self.more:
            return f"Not identical: the file was changed, it has {' and '.join(self.more)}."
        reason = (
            f" Since then: {'; '.join(self.changes)}." if self.changes else " The file was changed, or its settings."
        )
        return f"Not identical: {self.differing:,} pixels differ, by up to {self.largest} of 255.{reason}"


def replay(
    generator: ImageGenerator, png: object, *, image: Image.Image | None = None, mask: Image.Image | None = None
) -> Generator[ImageStep | Waiting | Verdict, None, None]:
    """Draw a PNG file's picture again. The file is checked by the call itself.

    Args:
        generator: of the same checkpoint.
        png: the file's bytes.
        image: the picture that it started from, if it did.
        mask: the mask, if there was one; the file itself holds it, unless it is an older one.

    Yields:
        what `ImageGenerator.generate` yields, and the Verdict at the end.

    Raises:
        RequestRejected: no recipe inside, one that no picture can be drawn from, or one for another model or picture.
    """
    original, recipe = read_png(png)
    if original.size != (recipe.width, recipe.height):
        raise RequestRejected(
            f"the picture is {original.width} x {original.height}, and its settings say {recipe.width} x "
            f"{recipe.height}: it was changed, or they were"
        )
    if recipe.revision != generator.revision:
        raise RequestRejected(
            f"the picture was made by {recipe.model or 'an unnamed model'}, revision {recipe.revision or 'unknown'}; "
            f"this one is revision {generator.revision}"
        )
    if recipe.image is not None and digest(image) != recipe.image:
        raise _needed("picture", image)
    steps = generator.generate(
        **recipe.arguments(), image=image if recipe.image else None, mask=_mask_again(generator, recipe, mask)
    )
    return _compared(steps, original, recipe, tuple(recipe.differences(generator.versions)))


def _mask_again(generator: ImageGenerator, recipe: Recipe, given: Image.Image | None) -> Image.Image | None:
    """The mask that the picture was drawn with, in pixels; for drawing it is the same as the one that was painted."""
    kept = recipe.latent_mask()
    if kept is None:
        if recipe.mask is not None and digest(given) != recipe.mask:
            raise _needed("mask", given)
        return given if recipe.mask else None
    scale = generator.size[0] // generator.latent_shape[3]
    tall, wide = kept.shape
    if (wide * scale, tall * scale) != (recipe.width, recipe.height):
        raise RequestRejected(
            f"the picture's settings are forged or damaged: mask of {wide} x {tall} for a picture of {recipe.width} x "
            f"{recipe.height}, where {scale} x {scale} pixels are one of it"
        )
    if given is not None and not np.array_equal(checked_mask(given, (recipe.width, recipe.height), scale), kept):
        raise _needed("mask", given)
    return Image.fromarray(kept.repeat(scale, 0).repeat(scale, 1))


def _needed(name: str, given: Image.Image | None) -> RequestRejected:
    missing = "upload it" if given is None else "the uploaded one is another"
    return RequestRejected(f"the picture was drawn from a {name} that is needed to draw it again: {missing}")


def _compared(
    steps: Generator[ImageStep | Waiting, None, None], original: Image.Image, recipe: Recipe, changes: tuple[str, ...]
) -> Generator[ImageStep | Waiting | Verdict, None, None]:
    again = None
    for step in steps:
        yield step
        if isinstance(step, ImageStep):
            again = step.image
    assert again is not None  # the last step has it
    more = [f"the colours {original.mode}, not RGB"] if original.mode != "RGB" else []
    more += [f"{frames} frames"] if (frames := original.info["frames"]) > 1 else []
    more += [name.replace("_", " ") for name in _SEEN_OTHERWISE if name in original.info]
    apart = np.abs(np.asarray(original.convert("RGB"), np.int16) - np.asarray(again, np.int16))
    yield Verdict(
        image=again,
        recipe=recipe,
        differing=int(apart.any(2).sum()),
        largest=int(apart.max()),
        more=tuple(more),
        changes=changes,
    )
