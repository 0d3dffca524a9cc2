"""Replay and verify: draw a picture again from the recipe in its PNG file, and compare every pixel."""

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from PIL import Image

from hfjax_app.errors import RequestRejected
from hfjax_app.images.generator import ImageGenerator
from hfjax_app.images.recipe import Recipe, digest, read_png
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
        mask: the mask, if there was one.

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
    for name, given, known in (("picture", image, recipe.image), ("mask", mask, recipe.mask)):
        if known is not None and digest(given) != known:
            missing = "upload it" if given is None else "the uploaded one is another"
            raise RequestRejected(f"the picture was drawn from a {name} that is needed to draw it again: {missing}")
    steps = generator.generate(
        **recipe.arguments(), image=image if recipe.image else None, mask=mask if recipe.mask else None
    )
    return _compared(steps, original, recipe, tuple(recipe.differences(generator.versions)))


def _compared(
    steps: Generator[ImageStep | Waiting, None, None], original: Image.Image, recipe: Recipe, changes: tuple[str, ...]
) -> Generator[ImageStep | Waiting | Verdict, None, None]:
    for step in steps:
        yield step
    again = step.pictures[0].image
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
