"""The words that matter most to a label: their contributions in many texts, summed up.

Does not explain texts one by one: `explanation.py` does.
"""

import random
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hfjax_app.limits import SENTIMENT_MAX_CHARACTERS, WORDS_MAX_TEXTS
from hfjax_app.sentiment.bulk import Row
from hfjax_app.sentiment.interface import SentimentModel

if TYPE_CHECKING:  # the page is served before jax is imported
    from hfjax_app.sentiment.explanation import Explanation


_RARE = 2  # texts without any contribution that are added to those with a word, so that chance finds rank lower


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word of some texts.

    Args:
        text: in lower case.
        mean: its contribution to the label's logit, the mean over the texts that have it.
        texts: how many have it.
    """

    text: str
    mean: float
    texts: int

    @property
    def weight(self) -> float:
        """The mean, less for a word that is rare."""
        return self.mean * self.texts / (self.texts + _RARE)


class WordRanking:
    """Sums of the contributions of each word, whatever its case. Punctuation is no word.

    Attributes:
        texts: how many explanations were added.
    """

    def __init__(self) -> None:
        self.texts = 0
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._in: Counter[str] = Counter()

    def add(self, explanation: "Explanation") -> None:
        self.texts += 1
        seen = set()
        for piece, value in explanation.pieces:
            if value is not None and not all(unicodedata.category(character)[0] == "P" for character in piece):
                word = piece.lower()
                self._sums[word] += value
                seen.add(word)
        self._in.update(seen)

    def strongest(self, most: int) -> list[Word]:
        """The words of the largest weight, for the label or against it, the largest first."""
        words = [
            Word(text=word, mean=total / self._in[word], texts=self._in[word]) for word, total in self._sums.items()
        ]
        return sorted(words, key=lambda word: -abs(word.weight))[:most]


def sample(rows: Sequence[Row]) -> list[str]:
    """At most WORDS_MAX_TEXTS texts of rows that were classified, in random order, the same each time.

    As many of the first ones as one likes are a fair sample too.
    """
    texts = [row.text[:SENTIMENT_MAX_CHARACTERS] for row in rows if row.prediction is not None]
    return random.Random(0).sample(texts, min(len(texts), WORDS_MAX_TEXTS))


def explained(classifier: SentimentModel, texts: Sequence[str], label: str) -> "Iterator[Explanation]":
    """The label explained for each text, one as the caller asks for it; single texts of others go first."""
    for text in texts:
        yield classifier.explain(text, label, urgent=False)
