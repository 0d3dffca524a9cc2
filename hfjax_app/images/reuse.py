"""Generation parameters of a file, fitted to the model that is to draw with them: nothing is refused for one value.

Does not read files: `generation_parameters.py` does.
"""

import math
import re
from dataclasses import replace
from typing import Any

from hfjax_app.errors import RequestRejected
from hfjax_app.images.generation_parameters import GenerationParameters
from hfjax_app.images.interface import ImageModel
from hfjax_app.images.prompt_weights import plain
from hfjax_app.images.request import MAX_GUIDANCE, MAX_SEED
from hfjax_app.images.scheduler_names import nearest
from hfjax_app.limits import IMAGE_MAX_CHARACTERS
from hfjax_app.pictures.colours import checked_colour
from hfjax_app.validation import checked_text

_WEIGHTED = re.compile(r"[(\[][^()\[\]:]{1,60}:\d{1,2}(?:\.\d{1,4})?[)\]]")  # as web UIs write weights
_MOST_NAMED = 3


def fitted(parameters: GenerationParameters, generator: ImageModel) -> GenerationParameters:
    """The parameters as `generator` takes them; `left_out` says what is not as in the file."""
    notes = list(parameters.left_out)
    values: dict[str, Any] = {}
    for name, limit in (("steps", (1, generator.max_steps)), ("guidance_scale", (0.0, MAX_GUIDANCE))):
        value = getattr(parameters, name)
        if value is not None:
            values[name] = _within(name.replace("_", " "), value, limit, notes)
    for name in ("strength", "variation"):
        if (value := getattr(parameters, name)) is not None:
            values[name] = _within(name, value, (0.0, 1.0), notes)
    if parameters.background is not None:
        values["background"] = checked_colour("background", parameters.background)
    for name in ("seed", "variation_of"):
        value = getattr(parameters, name)
        if value is not None and not 0 <= value <= MAX_SEED:
            notes.append(f"{name.replace('_', ' ')} {value}")
            values[name] = None
    for name in ("prompt", "negative_prompt"):
        values[name] = _text(name.replace("_", " "), getattr(parameters, name), notes)
    texts = (values["prompt"], values["negative_prompt"])
    weighted = _WEIGHTED.findall(" ".join(map(plain, texts) if generator.takes_weights else texts))
    if weighted:
        notes.append(f"weights of words, which are read as text: {', '.join(weighted[:_MOST_NAMED])}")
    if values["negative_prompt"] and not generator.takes_negative_prompt:
        notes.append("negative prompt: this model takes none")
        values["negative_prompt"] = ""
    size = generator.nearest_size(parameters.width, parameters.height)
    if size != (parameters.width, parameters.height):
        notes.append(f"size {parameters.width} x {parameters.height}: here {size[0]} x {size[1]}")
    values["width"], values["height"] = size
    if parameters.scheduler is not None:
        values["scheduler"] = nearest(parameters.scheduler, generator.schedulers)
        if values["scheduler"] != parameters.scheduler:
            notes.append(f"scheduler {parameters.scheduler}: here {values['scheduler']}")
    if parameters.revision != generator.revision and parameters.model:
        notes.append(f"model {parameters.model}")
    return replace(parameters, **values, left_out=tuple(notes))


def _within(name: str, value: float, limits: tuple[float, float], notes: list[str]) -> float | None:
    low, high = limits
    kept = None if math.isnan(value) else min(max(value, low), high)
    if kept != value:
        notes.append(f"{name} {value:g}: {'no number' if kept is None else f'here {kept:g}'}")
    return kept


def _text(name: str, text: str, notes: list[str]) -> str:
    kept = text[:IMAGE_MAX_CHARACTERS]
    if kept != text:
        notes.append(f"the {name} behind its first {IMAGE_MAX_CHARACTERS:,} characters")
    try:
        return checked_text(kept, name, IMAGE_MAX_CHARACTERS, may_be_blank=True)
    except RequestRejected as error:
        notes.append(str(error))
        return ""
