"""A weighted context-free grammar in text files, and sentences drawn from it.

Notation of `grammar/*.txt`:

- `[name]` opens a section, one alternative a line; in a section `[name,]` they are separated by commas. A section may
  be opened several times; its alternatives add up.
- `{name}` is replaced by a drawn alternative of that section, `(this|that)` by one of its parts, `_` is nothing.
- `3* text` makes an alternative three times as likely.
- A section whose name contains `~` is made twice, with `~` as `+` and as `-`; inside it `{x~}` has the same polarity
  and `{x!}` the opposite one.
- `#` opens a comment line.

What it does not do: agreement, capital letters and spacing; `corpus.py` corrects or roughens them.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from random import Random

FOLDER = Path(__file__).parent / "grammar"

_HEADER = re.compile(r"\[([^\],]+)(,?)\]")
_WEIGHT = re.compile(r"(\d+)\* ")
_GROUP = re.compile(r"\(((?:[^()]|\([^()]*\))*)\)")
_SYMBOL = re.compile(r"\{([^{}]+)\}")


@dataclass
class Section:
    """Alternatives of one symbol with the running sum of their weights."""

    alternatives: list[list[str | list[str]]] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    cumulative: list[float] = field(default_factory=list)

    def add(self, text: str, weight: float) -> None:
        self.alternatives.append(_parse(text))
        self.weights.append(weight)

    def draw(self, rng: Random) -> list[str | list[str]]:
        if len(self.cumulative) != len(self.weights):
            self.cumulative = list(accumulate(self.weights))
        return self.alternatives[bisect(self.cumulative, rng.random() * self.cumulative[-1])]


def _parse(text: str) -> list[str | list[str]]:
    """Splits an alternative into literal parts and groups; a group is the list of its options.

    An option may hold groups again, one level deep. A parenthesis without its partner (":)") is literal.
    """
    parts: list[str | list[str]] = []
    for index, part in enumerate(_GROUP.split(text)):
        if index % 2:
            parts.append(["" if option == "_" else option for option in _options(part)])
        elif part:
            parts.append("" if part == "_" else part)
    return parts


def _options(text: str) -> list[str]:
    """Splits at the bars that are not inside an inner group."""
    options, depth = [""], 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "|" and not depth:
            options.append("")
        else:
            options[-1] += character
    return options


class Grammar:
    """All sections; `draw(symbol, rng)` gives one sentence.

    Raises KeyError when a section that an alternative names does not exist (see `missing`).
    """

    def __init__(self, extra: Mapping[str, Mapping[str, float]], folder: Path = FOLDER) -> None:
        """extra: sections given as words with weights, beside those in the folder's files."""
        self._sections: dict[str, Section] = {}
        for path in sorted(folder.glob("*.txt")):
            self._read(path.read_text(encoding="utf-8").splitlines())
        for name, words in extra.items():
            for word, weight in words.items():
                self._section(name).add(word, weight)

    def _section(self, name: str) -> Section:
        return self._sections.setdefault(name, Section())

    def _read(self, lines: Iterable[str]) -> None:
        name, commas = "", False
        for line in lines:
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            if header := _HEADER.fullmatch(line):
                name, commas = header[1], bool(header[2])
                continue
            for alternative in line.split(", ") if commas else [line]:
                self._add(name, alternative)

    def _add(self, name: str, text: str) -> None:
        weight = 1.0
        if match := _WEIGHT.match(text):
            weight, text = float(match[1]), text[match.end() :]
        if "~" not in name:
            self._section(name).add(text, weight)
            return
        for same, opposite in ("+-", "-+"):
            polar = text.replace("~}", same + "}").replace("!}", opposite + "}")
            self._section(name.replace("~", same)).add(polar, weight)

    def words(self, *names: str) -> set[str]:
        """Every literal alternative of the named sections, as it is written."""
        return {
            part
            for name in names
            for alternative in self._sections[name].alternatives
            for part in alternative
            if isinstance(part, str) and "{" not in part
        }

    def names(self) -> list[str]:
        return list(self._sections)

    def missing(self) -> set[str]:
        """Symbols that are used and have no section."""
        used = {
            symbol
            for section in self._sections.values()
            for alternative in section.alternatives
            for part in alternative
            for text in ([part] if isinstance(part, str) else part)
            for symbol in _SYMBOL.findall(text)
        }
        return used - set(self._sections)

    def draw(self, symbol: str, rng: Random) -> str:
        return "".join(
            self._fill(part if isinstance(part, str) else rng.choice(part), rng)
            for part in self._sections[symbol].draw(rng)
        )

    def _fill(self, text: str, rng: Random) -> str:
        if "(" in text and _GROUP.search(text):
            text = "".join(part if isinstance(part, str) else rng.choice(part) for part in _parse(text))
        return _SYMBOL.sub(lambda match: self.draw(match[1], rng), text)
