"""Opinion words and everyday words by part of speech, from two packages that carry lexicons with their code.

- vaderSentiment (MIT, C. J. Hutto and E. Gilbert 2014): valence of some 7,500 tokens, from -4 to 4, rated by people.
- textblob (MIT): polarity of adjectives (from pattern, BSD), Brill's table of parts of speech (MIT), word frequencies.

`sections()` gives the `lex.*` sections of the grammar: `lex.adj+`, `lex.noun-`, `lex.vbd0` (`0`: no opinion) and so on.
A word is drawn more often when its valence is strong and when the word is common.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from importlib.resources import files
from pathlib import Path
from xml.etree import ElementTree

_SUFFIXES = (
    (r".*(ly)$", "adv"),
    (r".*(ful|less|ous|ive|able|ible|ish|ary|ic|y)$", "adj"),
    (r".*(ness|ment|ity|tion|sion|ance|ence|ism|ship|er|or|ist)$", "noun"),
    (r".*ing$", "vbg"),
    (r".*ed$", "vbd"),
)
_TAGS = {"JJ": "adj", "NN": "noun", "NNS": "nouns", "RB": "adv", "VB": "vb", "VBP": "vb"}
_TAGS |= {tag: tag.lower() for tag in ("VBZ", "VBD", "VBN", "VBG")}
_NEUTRAL_LIMIT = {"adj": 450, "noun": 1300, "nouns": 500, "vbd": 450, "vbn": 300, "vbz": 250}


def _word_list(name: str) -> frozenset[str]:
    lines = (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())


def valences() -> dict[str, float]:
    """Lower-case single words of the VADER lexicon with their valence, -4 to 4."""
    rows = (files("vaderSentiment") / "vader_lexicon.txt").read_text(encoding="utf-8").splitlines()
    pairs = (row.split("\t")[:2] for row in rows)
    return {word: float(valence) for word, valence in pairs if re.fullmatch(r"[a-z]{3,}", word)}


def polarities() -> dict[str, float]:
    """Adjectives of textblob's lexicon with their polarity, -1 to 1, as the mean over senses."""
    root = ElementTree.fromstring((files("textblob") / "en" / "en-sentiment.xml").read_text(encoding="utf-8"))
    senses: dict[str, list[float]] = defaultdict(list)
    for word in root.iter("word"):
        if word.get("pos") == "JJ" and re.fullmatch(r"[a-z]{3,}", word.get("form", "")):
            senses[word.get("form", "")].append(float(word.get("polarity", 0)))
    return {word: sum(values) / len(values) for word, values in senses.items()}


def parts_of_speech() -> dict[str, str]:
    """Lower-case words with their most usual part of speech as a section name ("adj", "vbd", ...)."""
    rows = (files("textblob") / "en" / "en-lexicon.txt").read_text(encoding="utf-8").splitlines()
    pairs = (row.split()[:2] for row in rows if not row.startswith(";;;") and len(row.split()) > 1)
    return {word: _TAGS[tag] for word, tag in pairs if tag in _TAGS and re.fullmatch(r"[a-z]{3,}", word)}


def frequencies() -> dict[str, int]:
    """Words with their number of occurrences in textblob's reference text."""
    rows = (files("textblob") / "en" / "en-spelling.txt").read_text(encoding="utf-8").splitlines()
    pairs = (row.split() for row in rows if row and not row.startswith(";;;"))
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def _guess(word: str) -> str | None:
    return next((part for pattern, part in _SUFFIXES if re.match(pattern, word)), None)


def sections(hand_written: set[str]) -> dict[str, dict[str, float]]:
    """Grammar sections of opinion words and of neutral words.

    hand_written: opinion words that the grammar files have already; they are never taken for neutral.
    """
    speech, counts, rated, adjectives = parts_of_speech(), frequencies(), valences(), polarities()
    no_opinion, not_neutral = _word_list("not_an_opinion.txt"), _word_list("not_neutral.txt") | hand_written
    result: dict[str, dict[str, float]] = defaultdict(dict)
    for word, valence in rated.items():
        part = speech.get(word) or _guess(word)
        if part and abs(valence) >= 1 and word not in no_opinion:
            common = math.log1p(counts.get(word, 0)) + (1.5 if word in speech else 0.3)
            result[f"lex.{part}{'+' if valence > 0 else '-'}"][word] = abs(valence) * common
    for word, polarity in adjectives.items():
        if abs(polarity) >= 0.4 and word not in rated and word not in no_opinion and speech.get(word) == "adj":
            common = math.log1p(counts.get(word, 0)) + 1
            result[f"lex.adj{'+' if polarity > 0 else '-'}"][word] = 2 * abs(polarity) * common
    for word in sorted(speech, key=lambda word: -counts.get(word, 0)):
        part = speech[word]
        neutral = abs(rated.get(word, 0)) < 0.5 and abs(adjectives.get(word, 0)) < 0.15
        chosen = result[f"lex.{part}0"]
        if neutral and word not in not_neutral and len(chosen) < _NEUTRAL_LIMIT.get(part, 0):
            chosen[word] = 1.0
    return {name: words for name, words in result.items() if words}
