"""The settings of a picture, in the panel beside it, and the shapes above it. `images/request.py` checks the values."""

import secrets
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import gradio as gr

from hfjax_app.images.request import MAX_IMAGES, VARIATION
from hfjax_app.studio.seed import typed_seed

if TYPE_CHECKING:  # these modules import jax, and the page is served before that
    from hfjax_app.images.generation_parameters import GenerationParameters
    from hfjax_app.images.interface import ImageModel

RANDOM_SEEDS = 2**32  # few digits, so that a person can read a seed


class ImageSettings:
    """Components in the surrounding blocks.

    Attributes:
        components: all of them, in the order that `arguments` takes their values.
        of_model: those whose values depend on the model, in the order of `fitted`.
        seed: the text field; the seed that was drawn is written there.
        is_random: whether another seed is drawn for each picture.
        size: "width x height".
        variations: holds those of variations of a seed.
    """

    def __init__(self) -> None:
        self.negative = gr.Textbox(
            "", label="Negative prompt", placeholder="what to avoid", lines=1, max_lines=4, elem_id="negative-prompt"
        )
        self.steps = gr.Slider(1, 100, 20, step=1, label="Steps", elem_id="steps", buttons=[])
        self.guidance = gr.Slider(0, 20, 7.5, step=0.1, label="Guidance", elem_id="guidance", buttons=[])
        self.count = gr.Slider(1, MAX_IMAGES, 1, step=1, label="Pictures", elem_id="count", buttons=[])
        self.scheduler = gr.Dropdown([], label="Scheduler", elem_id="scheduler")
        self.size = gr.Dropdown(
            [],
            label="Size",
            info="Those listed are warm; another one that you type compiles first.",
            allow_custom_value=True,
            elem_id="size",
        )
        self.seed = gr.Textbox("0", label="Seed", placeholder="random", max_lines=1, elem_id="seed")
        self.is_random = gr.Checkbox(True, label="Another seed each time", elem_id="random-seed")
        with gr.Accordion("Variations of a seed", open=False, elem_id="variations") as self.variations:
            self.variation_of = gr.Textbox(
                "",
                label="Near the picture of seed",
                placeholder="none: pictures of their own",
                max_lines=1,
                elem_id="variation-of",
            )
            self.variation = gr.Slider(
                0,
                1,
                VARIATION,
                step=0.05,
                label="Variation",
                info="0 is that picture, 1 another one.",
                elem_id="variation",
                buttons=[],
            )
        self.components = (
            *(self.negative, self.steps, self.guidance, self.scheduler, self.size, self.count),
            *(self.seed, self.is_random, self.variation_of, self.variation),
        )
        self.of_model = (self.steps, self.guidance, self.scheduler, self.size)

    @staticmethod
    def arguments(values: Sequence[Any]) -> dict[str, Any]:
        """The arguments of `ImageGenerator.generate` in the values of `components`, as the client sent them."""
        negative, steps, guidance, scheduler, size, count, seed, is_random, variation_of, variation = values
        width, height = size_of(size)
        chosen = None if is_random else typed_seed(seed)
        return {
            "negative_prompt": negative,
            "steps": steps,
            "guidance_scale": guidance,
            "scheduler": scheduler,
            "width": width,
            "height": height,
            "images": count,
            "seed": secrets.randbelow(RANDOM_SEEDS) if chosen is None else chosen,
            "variation_of": typed_seed(variation_of),
            "variation": variation,
        }

    @staticmethod
    def fitted(generator: "ImageModel") -> list[dict[str, Any]]:
        """Updates of `of_model`."""
        sizes, names = size_names(generator), list(generator.schedulers)
        return [
            gr.update(maximum=generator.max_steps, value=generator.recommended.steps),
            gr.update(value=generator.recommended.guidance_scale),
            gr.update(choices=names, value=names[0]),
            gr.update(choices=sizes, value=sizes[0]),
        ]

    @staticmethod
    def reused(parameters: "GenerationParameters") -> list[Any]:
        """Updates of `components` to a picture's parameters; what its file does not say stays."""
        size = f"{parameters.width} x {parameters.height}"
        seed, is_random = (gr.skip(), gr.skip()) if parameters.seed is None else (str(parameters.seed), False)
        known = [parameters.steps, parameters.guidance_scale, parameters.scheduler]
        near = "" if parameters.variation_of is None else str(parameters.variation_of)
        return [
            parameters.negative_prompt,
            *map(_or_same, known),
            *(size, 1, seed, is_random, near, _or_same(parameters.variation)),
        ]

    @classmethod
    def varied(cls, parameters: "GenerationParameters") -> list[Any]:
        """Updates of `components` to variations of a picture. Those of a variation stay near the same seed as it."""
        near = parameters.seed if parameters.variation_of is None else parameters.variation_of
        *same, _, _, _, _, variation = cls.reused(parameters)
        return [*same, MAX_IMAGES, gr.skip(), True, str(near), variation]


def _or_same(value: Any) -> Any:
    """A control's new value; the file may say none."""
    return gr.skip() if value is None else value


def size_of(text: Any) -> tuple[Any, Any]:
    """(width, height) of a text such as "64 x 64". Any other value is returned for the backend to reject."""
    parts = [part.strip() for part in str(text).lower().replace("×", "x").split("x")]
    if len(parts) != 2:
        return text, text
    width, height = (int(part) if part.isdecimal() and len(part) < 8 else part for part in parts)
    return width, height


def size_names(generator: "ImageModel") -> list[str]:
    """The sizes that are warm."""
    return [f"{width} x {height}" for width, height in generator.offered_sizes]


def shapes(generator: "ImageModel") -> dict[str, Any]:
    """An update of the buttons of shapes: one for each warm size, hidden where there is no choice."""
    sizes = generator.offered_sizes
    ratios = [_ratio(*size) for size in sizes]
    choices = [
        (ratio if ratios.count(ratio) == 1 else name, name)
        for ratio, name in zip(ratios, size_names(generator), strict=True)
    ]
    return gr.update(choices=choices, visible=len(sizes) > 1)


def _ratio(width: int, height: int) -> str:
    """The shape in small numbers, such as 2:3 for 832 x 1216, which is near it."""
    ratio = Fraction(min(width, height), max(width, height))
    if ratio.denominator > 16:
        ratio = ratio.limit_denominator(9)
    short, long = ratio.numerator, ratio.denominator
    return f"{long}:{short}" if width > height else f"{short}:{long}"
