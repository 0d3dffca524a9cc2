r"""The grammar of prompts, as web UIs have it: weights of words, brackets that are text, pieces.

    (word) [word]       a word's weight times 1.1, or divided by it; they may be nested, and left open up to the end
    (word:1.3)          a word's weight times 1.3; a number above HIGHEST is text, such as the ratio in "(16:9)"
    \( \) \[ \] \\      brackets and backslashes that are text
    BREAK               what follows begins a new piece for the text encoder
    <lora:name:0.8>     no text: the LoRA of this name is merged with this weight, 1 where there is none

Only models whose text encoders are all CLIP's read weights and pieces; for others brackets are text. Imports no
numerical library, so that a wrong prompt is refused at once.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from hfjax_app.errors import RequestRejected
from hfjax_app.limits import IMAGE_MAX_BRACKETS, IMAGE_MAX_LOW_WEIGHTS

HIGHEST = 2.0  # of a weight, also of nested brackets
_BRACKET = 1.1
_MOST_SHOWN, _MOST_NAMED = 60, 8  # characters of a part that is named, and how many are
# Numbers and names have lengths, so that no text takes more than one look at each letter.
_NO_TEXT = re.compile(r"<(?:lora|lyco|hypernet):[^<>]{0,300}>")
_LORA = re.compile(r"<lora:([^<>:]{1,100})(?::([^<>:]{0,100}))?[^<>]{0,100}>")
_SCHEDULED = r"\[[^\[\]]{0,300}(?::\s{0,9}\d{0,4}\.?\d{1,8}\s{0,9}|\|[^\[\]]{0,300})\]"  # [from:to:when], [this|that]
_MARK = re.compile(
    rf"(?P<escaped>\\[()\[\]\\])|(?P<scheduled>{_SCHEDULED})"
    r"|(?P<weight>:\s{0,9}([+-]?(?:\d{1,4}(?:\.\d{0,8})?|\.\d{1,8}))\s{0,9}\))|(?P<bracket>[()\[\]])"
)
_BREAK = re.compile(r"\bBREAK\b")
# What other programs read and this one can't, besides _NO_TEXT and _SCHEDULED.
_UNKNOWN = re.compile(
    r"__[\w/*-]{1,80}__|\{[^{}]{1,300}\}|\bembedding:[\w.-]{1,80}|\bAND\b"
    r"|\([^()]{1,60}\)(?:[+-]{1,4}(?=[\s,.]|$)|\d?\.\d{1,4})"  # InvokeAI's (word)++ and (word)1.3
)
_NUMBERED = re.compile(r"[(\[][^()\[\]:]{1,60}:\s{0,9}[+-]?\d{1,2}(?:\.\d{1,4})?[)\]]")


@dataclass(frozen=True, kw_only=True)
class Fragment:
    """A part of a prompt.

    Attributes:
        text: as the text encoder reads it.
        weight: 0 to HIGHEST; 1 is as usual.
        breaks: whether a new piece begins with it.
    """

    text: str
    weight: float = 1.0
    breaks: bool = False


def fragments(prompt: str) -> list[Fragment]:
    """The parts of a prompt; neighbours of one weight are one."""
    prompt = _NO_TEXT.sub("", prompt)
    found: list[Fragment] = []
    opened: dict[str, list[int]] = {"(": [], "[": []}  # where those that are not closed yet begin

    def add(text: str) -> None:
        for number, part in enumerate(_BREAK.split(text)):
            if number:
                part = f" {part.lstrip()}"
                if found:
                    found[-1] = replace(found[-1], text=found[-1].text.rstrip())
            if part:
                found.append(Fragment(text=part, breaks=number > 0))

    def weigh(begin: int, factor: float) -> None:
        found[begin:] = [replace(each, weight=each.weight * factor) for each in found[begin:]]

    end = 0
    for match in _MARK.finditer(prompt):
        add(prompt[end : match.start()])
        end, mark = match.end(), match[0]
        if match["escaped"]:
            add(mark[1])
        elif match["weight"] and opened["("]:
            weight, begin = float(match[4]), opened["("].pop()
            if begin < len(found) and 0 <= weight <= HIGHEST:
                weigh(begin, weight)
            else:
                found.insert(begin, Fragment(text="("))
                opened = {each: [at + (at > begin) for at in begins] for each, begins in opened.items()}
                add(mark)
        elif mark in opened:
            opened[mark].append(len(found))
        elif mark in (")", "]") and (begins := opened["(" if mark == ")" else "["]):
            if (begin := begins.pop()) == len(found):  # nothing between them
                add("()" if mark == ")" else "[]")
            else:
                weigh(begin, _BRACKET if mark == ")" else 1 / _BRACKET)
        else:
            add(mark)
    add(prompt[end:])
    for mark, factor in (("(", _BRACKET), ("[", 1 / _BRACKET)):
        for begin in opened[mark]:
            weigh(begin, factor)
    return _merged(found) or [Fragment(text="")]


def _merged(parts: list[Fragment]) -> list[Fragment]:
    merged: list[Fragment] = []
    for part in parts:
        # by rounding, (a) in [ ] has not quite the usual weight
        part = replace(part, weight=min(1.0 if abs(part.weight - 1) < 1e-9 else part.weight, HIGHEST))
        if merged and not part.breaks and merged[-1].weight == part.weight:
            merged[-1] = replace(merged[-1], text=merged[-1].text + part.text)
        else:
            merged.append(part)
    return merged


def check_weights(prompt: str) -> None:
    """Refuse a prompt that takes too long: each weight below 1 costs a run of the text encoder.

    Raises:
        RequestRejected: there are more than IMAGE_MAX_BRACKETS brackets, or IMAGE_MAX_LOW_WEIGHTS weights below 1.
    """
    if (brackets := prompt.count("(") + prompt.count("[")) > IMAGE_MAX_BRACKETS:
        raise RequestRejected(f"{brackets} brackets in a prompt: at most {IMAGE_MAX_BRACKETS}")
    low = sum(each.weight < 1 for each in fragments(prompt))
    if low > IMAGE_MAX_LOW_WEIGHTS:
        raise RequestRejected(f"{low} weights below 1 in a prompt: at most {IMAGE_MAX_LOW_WEIGHTS}")


def plain(prompt: str) -> str:
    """A prompt without its weights."""
    return "".join(each.text for each in fragments(prompt))


def unweighted(prompt: str) -> str:
    """A prompt for text encoders that read no weights: their brackets are text."""
    text = _MARK.sub(lambda match: match[0][1] if match["escaped"] else match[0], _NO_TEXT.sub("", prompt))
    return re.sub(r" {2,}", " ", _BREAK.sub("", text)) if _BREAK.search(text) else text


def has_weights(prompt: str) -> bool:
    return any(each.weight != 1 for each in fragments(prompt))


def loras_in(prompt: str) -> dict[str, float]:
    """The names of LoRAs in a prompt, and their weights; of one that is there twice the last.

    Raises:
        RequestRejected: a weight is no number.
    """
    found = {}
    for name, weight in _LORA.findall(prompt):
        try:
            found[name] = float(weight or 1)
        except ValueError:
            raise RequestRejected(f"<lora:{name}:{weight}>: must have a weight behind its name, such as 0.8") from None
    return found


def left_out(prompt: str, *, takes_weights: bool, loras: Collection[str] = ()) -> list[str]:
    """What of a prompt is not taken as the program means it that has it in its grammar; a line for each kind.

    Args:
        prompt: that `check_weights` takes.
        takes_weights: whether the model reads weights.
        loras: the names of the model's LoRAs.
    """
    rest = _NO_TEXT.sub("", prompt)
    marks = [*_MARK.finditer(rest)]
    as_text = [match["scheduled"] for match in marks if match["scheduled"]] + _UNKNOWN.findall(rest)
    # beyond HIGHEST, or all where the model reads none
    as_text += _NUMBERED.findall(plain(prompt) if takes_weights else unweighted(prompt))
    if not takes_weights:
        nested = re.findall(r"\({2,9}[^()]{0,80}\){2,9}|\[{1,9}[^\[\]]{0,80}\]{1,9}", rest)
        as_text += [*nested, *_BREAK.findall(rest)]
    no_text = [tag for tag in _NO_TEXT.findall(prompt) if not ((lora := _LORA.fullmatch(tag)) and lora[1] in loras)]
    lines = {"no text": no_text, "read as text": as_text}
    return [f"{kind}: {_named(parts)}" for kind, parts in lines.items() if parts]


def _named(parts: list[str]) -> str:
    shown = [" ".join(part.split())[:_MOST_SHOWN] for part in dict.fromkeys(parts)]
    more = [f"{len(shown) - _MOST_NAMED} more"] if len(shown) > _MOST_NAMED else []
    return ", ".join([*shown[:_MOST_NAMED], *more])
