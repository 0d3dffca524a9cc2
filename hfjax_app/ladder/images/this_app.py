"""Rung 4: this app's step.

Between two calls of the UNet a pipeline still computes guidance and the scheduler's formula one operator at a time.
Here they are in the program as well: a scheduler is a table of weights (`images/schedule.py`), so steps, guidance and
scheduler are data, and no choice of them compiles anything. All programs are compiled before the first picture.
"""

from collections.abc import Callable

import numpy as np

from hfjax_app.images import ImageGenerator, ImageRequest, ImageStep
from hfjax_app.ladder.images.task import PROMPT, ImageTask, Run


def prepare(task: ImageTask) -> Run:
    generator = ImageGenerator.from_pretrained(task.source)

    def run(stepped: Callable[[], None]) -> np.ndarray:
        width, height = task.size
        request = ImageRequest(
            PROMPT,
            steps=task.steps,
            guidance_scale=task.guidance_scale,
            width=width,
            height=height,
            latents=task.noise,
        )
        pixels = None
        for moment in generator.generate(request):
            if isinstance(moment, ImageStep):
                stepped()
                pixels = moment.pictures[0].pixels
        assert pixels is not None, "the last step has pixels"
        return pixels

    return run
