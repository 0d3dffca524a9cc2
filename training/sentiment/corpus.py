"""Labelled texts for training: drawn from the grammar, corrected, with typing errors, without held-out sentences."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from random import Random

from training.sentiment import lexicon
from training.sentiment.grammar import Grammar

LABELS = ("negative", "neutral", "positive")
HELD_OUT = Path(__file__).parents[2] / "tests" / "sentiment" / "held_out.tsv"

WHOLE = {"negative": "text-", "neutral": "text.neutral", "positive": "text+"}
PLAIN = {"negative": "plain.text-", "neutral": "plain.text.neutral", "positive": "plain.text+"}
_WORD = re.compile(r"\w+")
_TIDY = (
    (re.compile(r"\s+"), " "),
    (re.compile(r" ([,.;:?!](?:\s|$))"), r"\1"),
    (re.compile(r" (?='(?:m|re|ve|ll|s|d)\b)"), ""),
    (re.compile(r"\ba (?=(?!one\b|uni|use|euro|u )[aeiou])", re.IGNORECASE), "an "),
    (re.compile(r"\ban (?=[bcdfgjklmnpqrstvwxyz])(?!x-ray)"), "a "),
    (re.compile(r"([.!?])\.(?=\s|$)"), r"\1"),
)


def read_labelled(path: Path) -> list[tuple[str, str]]:
    """(label, sentence) pairs of a file with one tab-separated pair a line. Raises ValueError for an unknown label."""
    pairs = []
    for line in path.read_text(encoding="utf-8").splitlines():
        label, _, sentence = line.partition("\t")
        if label not in LABELS or not sentence:
            raise ValueError(f"{path.name}: expected 'label<tab>sentence', got {line!r}")
        pairs.append((label, sentence))
    return pairs


def words_of(text: str) -> tuple[str, ...]:
    """The words of a text in lower case, without apostrophes and punctuation. Equal ones mean equal sentences."""
    text = unicodedata.normalize("NFKC", text).lower().replace("’", "'").replace("'", "")
    return tuple(_WORD.findall(text))


class Forbidden:
    """Sentences that no text may contain as a run of words, whatever the case and punctuation.

    Sentences of one or two words ("So-so.") forbid only the text that consists of nothing else, otherwise common words
    would vanish from the corpus.
    """

    def __init__(self, sentences: Iterable[str]) -> None:
        self._whole = {words_of(sentence) for sentence in sentences}
        self._by_start: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        for words in self._whole:
            if len(words) > 2:
                self._by_start.setdefault(words[:2], []).append(words)

    def contained_in(self, text: str) -> bool:
        words = words_of(text)
        if words in self._whole:
            return True
        return any(
            words[start : start + len(sentence)] == sentence
            for start in range(len(words) - 2)
            for sentence in self._by_start.get(words[start : start + 2], ())
        )


def build_grammar() -> Grammar:
    """The grammar's files together with the lexicon's words."""
    bare = Grammar({})
    polar = [name for name in bare.names() if name[-1] in "+-" and not name.startswith("plain.")]
    return Grammar(lexicon.sections({word for phrase in bare.words(*polar) for word in words_of(phrase)}))


def tidy(text: str) -> str:
    """Spaces, "a" before a vowel, doubled full stops."""
    for pattern, replacement in _TIDY:
        text = pattern.sub(replacement, text)
    return text.strip()


def _misspell(word: str, rng: Random) -> str:
    at = rng.randrange(1, len(word) - 1)
    kind = rng.random()
    if kind < 0.4:
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    if kind < 0.7:
        return word[:at] + word[at + 1 :]
    return word[:at] + word[at] + word[at:]


def roughen(text: str, rng: Random) -> str:
    """The text with typing habits: no apostrophes or punctuation, sometimes a misspelt or stretched word."""
    if rng.random() < 0.12:
        text = text.replace("'", "")
    elif rng.random() < 0.1:
        text = text.replace("'", "’")
    if rng.random() < 0.06:
        text = re.sub(r"[,.;:!?]", "", text)
    if rng.random() < 0.04:
        words = text.split(" ")
        long = [index for index, word in enumerate(words) if len(word) > 4 and word.isalpha()]
        if long:
            index = rng.choice(long)
            words[index] = _misspell(words[index], rng)
            text = " ".join(words)
    if rng.random() < 0.02:
        text = re.sub(r"([aeiou])(?=\w?\b)", lambda match: match[1] * rng.randint(2, 4), text, count=1)
    return text


def texts(
    grammar: Grammar, *, seed: int, count: int, forbidden: Collection[str], start: Mapping[str, str] = WHOLE
) -> Iterator[tuple[str, str]]:
    """`count` pairs of label and text, the labels in turn; no text contains a forbidden sentence.

    start: label -> symbol of the grammar, WHOLE for everything or PLAIN for the plainest sentences. Deterministic from
    the seed. A grammar that has nothing but forbidden sentences for a label never returns.
    """
    rng, guard = Random(seed), Forbidden(forbidden)
    for index in range(count):
        label = LABELS[index % len(LABELS)]
        text = tidy(grammar.draw(start[label], rng))
        while not text or guard.contained_in(text):
            text = tidy(grammar.draw(start[label], rng))
        rough = roughen(text, rng)
        yield label, text if guard.contained_in(rough) else rough
