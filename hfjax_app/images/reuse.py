"""Generation parameters of a file, fitted to the model that is to draw with them: nothing is refused for one value.

Does not read files: `generation_parameters.py` does.
"""

import math
import re
from dataclasses import replace

from hfjax_app.errors import RequestRejected
from hfjax_app.images.generation_parameters import GenerationParameters
from hfjax_app.images.interface import ImageFacts
from hfjax_app.images.prompt_weights import plain
from hfjax_app.images.request import MAX_SEED, OPTIONS
from hfjax_app.images.scheduler_names import nearest
from hfjax_app.limits import IMAGE_MAX_CHARACTERS
from hfjax_app.pictures.colours import checked_colour
from hfjax_app.validation import checked_text

_WEIGHTED = re.compile(r"[(\[][^()\[\]:]{1,60}:\d{1,2}(?:\.\d{1,4})?[)\]]")  # as web UIs write weights
_MOST_NAMED = 3


def fitted(parameters: GenerationParameters, facts: ImageFacts) -> GenerationParameters:
    """The parameters as a model takes them; `left_out` says what is not as in the file."""
    notes = list(parameters.left_out)
    values = dict(parameters.values)
    for name, option in OPTIONS.items():
        value, called = values.get(name), name.replace("_", " ")
        if value is None or option.low is None or option.high is None:
            continue
        if option.high == MAX_SEED:  # a seed that is near draws another picture
            if not option.low <= value <= option.high:
                notes.append(f"{called} {value}")
                values[name] = None
            continue
        values[name] = _within(called, value, (option.low, facts.most.get(name, option.high)), notes)
    if values.get("background") is not None:
        values["background"] = checked_colour("background", values["background"])
    for name in ("prompt", "negative_prompt"):
        values[name] = _text(name.replace("_", " "), values[name], notes)
    texts = (values["prompt"], values["negative_prompt"])
    weighted = _WEIGHTED.findall(" ".join(map(plain, texts) if facts.takes_weights else texts))
    if weighted:
        notes.append(f"weights of words, which are read as text: {', '.join(weighted[:_MOST_NAMED])}")
    if values["negative_prompt"] and not facts.takes_negative_prompt:
        notes.append("negative prompt: this model takes none")
        values["negative_prompt"] = ""
    asked = values["width"], values["height"]
    size = facts.sizes.nearest(*asked)
    if size != asked:
        notes.append(f"size {asked[0]} x {asked[1]}: here {size[0]} x {size[1]}")
    values["width"], values["height"] = size
    if (scheduler := values.get("scheduler")) is not None:
        values["scheduler"] = nearest(scheduler, facts.schedulers)
        if values["scheduler"] != scheduler:
            notes.append(f"scheduler {scheduler}: here {values['scheduler']}")
    if parameters.revision != facts.revision and parameters.model:
        notes.append(f"model {parameters.model}")
    return replace(parameters, values=values, left_out=tuple(notes))


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
