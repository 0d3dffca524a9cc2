"""A small grammar for sentences, and the habits of people who type.

`expand` turns a pattern into one of the sentences it stands for: `[a|b|]` is a choice (which may nest, and may be
empty), `{slot}` is filled later. `User` and `say` fill the slots; what a user types then loses capitals or
punctuation, or gains a typo, now and then, but never inside a slot's value, so that the answer can repeat the value
exactly as typed.
"""

# ruff: noqa: E501 (a pattern reads best on one line)

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

SLOT = re.compile(r"\{(\w+)\}")
OPENINGS = (
    "[hey|hi|hello|ok|okay|so|well|please|um|oh|and|also|alright|right|great|cool|now|listen|look|yes|no|sorry|thanks|good][,|,|!|...] ",
    "[now|and|so|but|then|ok|hey|please|pls] ",
    "[I was wondering|I'm wondering|just wondering|I'm curious|out of curiosity|quick question|a question|one more thing|another question|by the way|tell me|let me ask|I have a question|just curious|before I forget|one last thing|next question|by any chance|for my homework|I'd like to know|seriously|my friend asks]: ",
    "[I was wondering|just wondering|I'm curious|out of curiosity|by the way|tell me|let me see|to change the subject|if you don't mind|if I may ask|honestly|actually|first of all|on another note|just for fun], ",
    "[I'm new here|I have a question|this is fun|I'm curious|that was good|let's try something else|I'm testing you|I need some help|this is interesting|let's see|I like this demo|it's late|I'm a beginner][.|!] ",
)
CLOSINGS = (
    "[ please|, please| pls| plz| thanks|, thanks| thank you|, thank you|, if you can| for me| then| now| :)|, if you don't mind| for a friend| right now| real quick|, by the way|, do you know|, any idea|, my friend| in your own words| or something|, okay| today|, buddy|, dear model|, just like that]",
)
SHORTENED = {
    "what is": "whats",
    "what's": "whats",
    "you": "u",
    "your": "ur",
    "are": "r",
    "please": "pls",
    "I'm": "im",
    "don't": "dont",
}
SHORTENED |= {
    "can't": "cant",
    "favourite": "favorite",
    "colour": "color",
    "because": "cuz",
    "about": "abt",
    "do not": "dont",
}


@cache
def _parse(pattern: str) -> tuple:
    """The pattern as nested tuples: a sequence of strings and of ("|", alternative, alternative, ...)."""

    def sequence(at: int, inside: bool) -> tuple[list, int]:
        alternatives, parts, text = [], [], ""
        while at < len(pattern):
            char = pattern[at]
            if char == "[":
                choice, at = sequence(at + 1, True)
                parts += [text, ("|", *choice)]
                text = ""
            elif inside and char in "|]":
                alternatives.append((*parts, text))
                parts, text = [], ""
                if char == "]":
                    return alternatives, at + 1
                at += 1
            else:
                text += char
                at += 1
        if inside:
            raise ValueError(f"pattern has a [ without its ]: {pattern!r}")
        return [(*parts, text)], at

    return sequence(0, False)[0][0]


def expand(rng: random.Random, pattern: str) -> str:
    """One sentence of the pattern; slots stay as they are."""

    def pick(parts: tuple) -> str:
        return "".join(part if isinstance(part, str) else pick(rng.choice(part[1:])) for part in parts)

    return pick(_parse(pattern))


def fill(text: str, values: Mapping[str, str]) -> str:
    return SLOT.sub(lambda match: values[match[1]], text)


def say(rng: random.Random, patterns: str | list[str], values: Mapping[str, str] | None = None) -> str:
    """What the assistant says: one pattern, expanded and filled, with a capital letter in front unless a slot stands there."""
    pattern = patterns if isinstance(patterns, str) else rng.choice(patterns)
    text = expand(rng, pattern)
    if not text.startswith("{"):
        text = text[:1].upper() + text[1:]
    return fill(text, values or {})


@dataclass(frozen=True, kw_only=True)
class Typed:
    """What a user typed, and the values of its slots as they were typed."""

    text: str
    values: dict[str, str]


def _typo(rng: random.Random, text: str) -> str:
    places = [at for at in range(1, len(text) - 1) if text[at - 1 : at + 2].isalpha()]
    if not places:
        return text
    at = rng.choice(places)
    swapped = text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    dropped = text[:at] + text[at + 1 :]
    doubled = text[:at] + text[at] + text[at:]
    return rng.choice([swapped, dropped, doubled])


def user(
    rng: random.Random,
    patterns: str | list[str],
    values: Mapping[str, str] | None = None,
    *,
    wrap: bool = True,
    fixed: tuple[str, ...] = (),
) -> Typed:
    """One of the patterns as a person might type it. `wrap` allows an opening or a closing word; `fixed` slots keep their
    capitals."""
    pattern = patterns if isinstance(patterns, str) else rng.choice(patterns)
    text = expand(rng, pattern)
    values = dict(values or {})
    if wrap and rng.random() < 0.14:
        text = expand(rng, rng.choice(OPENINGS)) + text
    if wrap and rng.random() < 0.08:
        end = len(text.rstrip("?.! "))
        text = text[:end] + expand(rng, rng.choice(CLOSINGS)) + text[end:]
    if not text.startswith("{"):
        text = text[:1].upper() + text[1:]
    habit = rng.random()
    lower = habit < 0.38
    if habit < 0.25 or habit > 0.93:
        text = text.rstrip("?.!")
    pieces = re.split(r"(\{\w+\})", text)
    if rng.random() < 0.1:
        old = rng.choice(list(SHORTENED))
        pieces = [p if p.startswith("{") else re.sub(rf"\b{old}\b", SHORTENED[old], p) for p in pieces]
    if rng.random() < 0.06:
        at = rng.randrange(len(pieces))
        if not pieces[at].startswith("{"):
            pieces[at] = _typo(rng, pieces[at])
    if lower:
        pieces = [p if p.startswith("{") else p.lower() for p in pieces]
        values = {name: value if name in fixed else value.lower() for name, value in values.items()}
    elif rng.random() < 0.015:
        pieces = [p if p.startswith("{") else p.upper() for p in pieces]
        values = {name: value.upper() for name, value in values.items()}
    return Typed(text=re.sub(r" +", " ", fill("".join(pieces), values)).strip(), values=values)
