"""The settings of a picture, in the panel beside it, and the shapes above it. `images/request.py` checks the values."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import gradio as gr

from hfjax_app.images.interface import ImageFacts, ImageModel
from hfjax_app.images.request import (
    MAX_CLIP_SKIP,
    MAX_IMAGES,
    MAX_LORA_WEIGHT,
    OPTIONS,
    VARIATION,
    loras_of,
    random_seed,
    real_number,
    text_of,
)
from hfjax_app.limits import IMAGE_MAX_LORAS
from hfjax_app.studio.tab import typed_seed

_LORA = "lora "  # the names of their controls begin so
_LORAS = "<p>Weights; 0 leaves one out. In a prompt: &lt;lora:name:0.8&gt;</p>"


class ImageSettings:
    """Components in the surrounding blocks.

    A control of a drawing option stands in `_controls` under the option's name, and needs nothing else here.

    Attributes:
        components: all of them, in the order that `arguments` takes their values.
        of_model: those whose values depend on the model, in the order of `fitted`.
        seed: the text field; the seed that was drawn is written there.
        is_random: whether another seed is drawn for each picture.
        size: "width x height".
        variations: holds those of variations of a seed.
        loras: holds the weights of the model's LoRAs.
    """

    def __init__(self) -> None:
        negative = gr.Textbox(
            "", label="Negative prompt", placeholder="what to avoid", lines=1, max_lines=4, elem_id="negative-prompt"
        )
        steps = gr.Slider(1, 100, 20, step=1, label="Steps", elem_id="steps", buttons=[])
        guidance = gr.Slider(0, 20, 7.5, step=0.1, label="Guidance", elem_id="guidance", buttons=[])
        count = gr.Slider(1, MAX_IMAGES, 1, step=1, label="Pictures", elem_id="count", buttons=[])
        scheduler = gr.Dropdown([], label="Scheduler", elem_id="scheduler")
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
            variation_of = gr.Textbox(
                "",
                label="Near the picture of seed",
                placeholder="none: pictures of their own",
                max_lines=1,
                elem_id="variation-of",
            )
            variation = gr.Slider(
                0,
                1,
                VARIATION,
                step=0.05,
                label="Variation",
                info="0 is that picture, 1 another one.",
                elem_id="variation",
                buttons=[],
            )
        clip_skip = gr.Slider(
            0,
            MAX_CLIP_SKIP,
            0,
            step=1,
            label="Clip skip",
            info="Last layers of the text encoder left out; web UIs count one more.",
            visible=False,
            elem_id="clip-skip",
            buttons=[],
        )
        with gr.Accordion("LoRA", open=False, visible=False, elem_id="loras") as self.loras:
            gr.HTML(_LORAS, elem_id="loras-how", apply_default_css=False)
            loras = [
                gr.Slider(
                    -MAX_LORA_WEIGHT,
                    MAX_LORA_WEIGHT,
                    0,
                    step=0.05,
                    label="LoRA",
                    visible=False,
                    elem_id=f"lora-{number}",
                    buttons=[],
                )
                for number in range(IMAGE_MAX_LORAS)
            ]
        self._controls: dict[str, Any] = {
            "negative_prompt": negative,
            "steps": steps,
            "guidance_scale": guidance,
            "scheduler": scheduler,
            "size": self.size,
            "images": count,
            "seed": self.seed,
            "is_random": self.is_random,
            "variation_of": variation_of,
            "variation": variation,
            "clip_skip": clip_skip,
            **{f"{_LORA}{number}": slider for number, slider in enumerate(loras)},
        }
        self.components = tuple(self._controls.values())
        self.of_model = (negative, steps, guidance, scheduler, self.size, clip_skip, *loras)

    def arguments(self, values: Sequence[Any], facts: ImageFacts) -> dict[str, Any]:
        """The options of an `ImageRequest` in the values of `components`, as the client sent them.

        Args:
            values: of the components.
            facts: of the model that draws.
        """
        options = dict(zip(self._controls, values, strict=True))
        weights = [options.pop(name) for name in self._controls if name.startswith(_LORA)]
        if facts.loras:
            found = {name: weight for name, weight in zip(facts.loras, weights, strict=False) if weight}
            for name, weight in found.items():
                real_number(f"weight of the LoRA {name}", weight, -MAX_LORA_WEIGHT, MAX_LORA_WEIGHT)
            options["loras"] = text_of(found)
        options["width"], options["height"] = size_of(options.pop("size"))
        seed = None if options.pop("is_random") else typed_seed(options["seed"])
        options["seed"] = random_seed() if seed is None else seed
        options["variation_of"] = typed_seed(options["variation_of"])
        return options

    @staticmethod
    def fitted(generator: ImageModel) -> list[dict[str, Any]]:
        """Updates of `of_model`."""
        facts, sizes = generator.facts, size_names(generator)
        return [
            gr.update(value="", visible=facts.takes_negative_prompt),
            gr.update(maximum=facts.most["steps"], value=facts.recommended.steps),
            gr.update(value=facts.recommended.guidance_scale, visible=facts.takes_guidance),
            gr.update(choices=list(facts.schedulers), value=facts.schedulers[0]),
            gr.update(choices=sizes, value=sizes[0]),
            # where nothing can be left out it is not shown, but no slider ends where it begins
            gr.update(maximum=facts.most["clip_skip"] or 1, value=0, visible=facts.most["clip_skip"] > 0),
            *(
                gr.update(label=name, value=lora.weight, visible=True)
                for name, lora in list(facts.loras.items())[:IMAGE_MAX_LORAS]
            ),
            *[gr.update(value=0, visible=False)] * (IMAGE_MAX_LORAS - len(facts.loras)),
        ]

    def reused(self, values: Mapping[str, Any], facts: ImageFacts, **changes: Any) -> list[Any]:
        """Updates of `components` to a picture's values; what its file does not say stays.

        Args:
            values: `GenerationParameters.values`.
            facts: of the model that will draw.
            changes: other updates, by the names of controls.
        """
        loras = loras_of(values.get("loras") or "")
        seed, near = values.get("seed"), values.get("variation_of")
        updates = {
            **{name: option.idle for name, option in OPTIONS.items() if option.idle is not None},
            **{name: value for name, value in values.items() if value is not None},
            "size": f"{values['width']} x {values['height']}",
            "images": 1,
            "variation_of": "" if near is None else str(near),
            **({} if seed is None else {"seed": str(seed), "is_random": False}),
            **{f"{_LORA}{number}": loras.get(name, 0) for number, name in enumerate(facts.loras)},
            **changes,
        }
        return [updates.get(name, gr.skip()) for name in self._controls]

    def varied(self, values: Mapping[str, Any], facts: ImageFacts) -> list[Any]:
        """Updates of `components` to variations of a picture. Those of a variation stay near the same seed as it."""
        near = values.get("seed") if values.get("variation_of") is None else values["variation_of"]
        changes = {"images": MAX_IMAGES, "seed": gr.skip(), "is_random": True, "variation_of": str(near)}
        return self.reused(values, facts, **changes)


def size_of(text: Any) -> tuple[Any, Any]:
    """(width, height) of a text such as "64 x 64". Any other value is returned for the backend to reject."""
    parts = [part.strip() for part in str(text).lower().replace("×", "x").split("x")]
    if len(parts) != 2:
        return text, text
    width, height = (int(part) if part.isdecimal() and len(part) < 8 else part for part in parts)
    return width, height


def size_names(generator: ImageModel) -> list[str]:
    """The sizes that are warm."""
    return [f"{width} x {height}" for width, height in generator.offered_sizes]


def shapes(generator: ImageModel) -> dict[str, Any]:
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
