"""The denoising loop: the steps of a request's pictures, one after the other, in turns with those of other requests.

Does not check requests and does not admit them: `generator.py` does.
"""

import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TypeVar

import jax
import numpy as np
from PIL import Image

from hfjax_app.errors import ModelUnavailable
from hfjax_app.images import preview
from hfjax_app.images.denoising_state import DenoisingState, Drawing
from hfjax_app.images.programs import DiffusionPrograms, SizedPrograms
from hfjax_app.images.steps import ImageStep, Picture
from hfjax_app.runtime.fair_lock import FairLock

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


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
        self._device = FairLock()
        self.steps = 0
        self.steps_per_s: float | None = None
        self._colours: np.ndarray | None = None
        if max(programs.size) > preview.MAX_DECODED:
            own = programs.sized(programs.size)
            self._colours = preview.fit_colours(lambda latents: own.decode(own.put(latents)), own.latent_shape)

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
        with self._device:
            conditioning = programs.read(request)
        states = []
        for seed in request.seeds:
            with self._device:
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
                )
                for state, (pixels, latents) in zip(states, results, strict=True)
            )
            yield ImageStep(
                step=i + 1,
                steps=schedule.steps,
                seconds=time.perf_counter() - started,
                pictures=pictures,
                show=partial(self._previews, pictures, expected, programs) if drawing.previews else tuple,
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
            with self._device:
                results += self._programs.calls.together(call, group)
        return results

    def _previews(
        self, pictures: Sequence[Picture], expected: list[jax.Array], programs: SizedPrograms
    ) -> list[Image.Image]:
        """The pictures; before the last step, pictures of their predicted clean latents."""
        if finished := [picture.image for picture in pictures if picture.image is not None]:
            return finished
        if self._colours is not None:
            return [preview.estimate(np.asarray(clean), self._colours, programs.size) for clean in expected]
        return [preview.to_picture(pixels) for pixels in self._in_turns(programs.decode, expected)]
