"""Weights of words in a prompt, as web UIs write them: "(word:1.3)".

Only models whose text encoders are all CLIP's read them; for others they are text. Imports no numerical library, so
that a wrong prompt is refused at once.
"""

import re
from dataclasses import dataclass

from hfjax_app.errors import RequestRejected
from hfjax_app.limits import IMAGE_MAX_LOW_WEIGHTS

HIGHEST = 2.0  # a greater number is text, such as the ratio in "(16:9)"
_WEIGHTED = re.compile(r"(?<!\\)\(((?:[^()\\]|\\.)+):\s*(\d*\.?\d+)\s*\)")


@dataclass(frozen=True, kw_only=True)
class Fragment:
    """A part of a prompt and its weight, 0 to HIGHEST; 1 is as usual."""

    text: str
    weight: float = 1.0


def fragments(prompt: str) -> list[Fragment]:
    """The parts of a prompt; a prompt without weights is one."""
    found: list[Fragment] = []
    end = 0
    for match in _WEIGHTED.finditer(prompt):
        if (weight := float(match[2])) > HIGHEST:
            continue
        found += [Fragment(text=prompt[end : match.start()]), Fragment(text=match[1], weight=weight)]
        end = match.end()
    if not found:
        return [Fragment(text=prompt)]
    shown = [Fragment(text=re.sub(r"\\([()])", r"\1", each.text), weight=each.weight) for each in found]
    return [each for each in [*shown, Fragment(text=prompt[end:])] if each.text]


def check_weights(prompt: str) -> None:
    """Refuse a prompt that runs the text encoder too often: each weight below 1 costs a run.

    Raises:
        RequestRejected: there are more than IMAGE_MAX_LOW_WEIGHTS of them.
    """
    low = sum(each.weight < 1 for each in fragments(prompt))
    if low > IMAGE_MAX_LOW_WEIGHTS:
        raise RequestRejected(f"{low} weights below 1 in a prompt: at most {IMAGE_MAX_LOW_WEIGHTS}")


def plain(prompt: str) -> str:
    """A prompt without its weights."""
    return "".join(each.text for each in fragments(prompt))


def has_weights(prompt: str) -> bool:
    return any(each.weight != 1 for each in fragments(prompt))
