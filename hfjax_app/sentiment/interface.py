"""What the studio and the API use of a classifier, whether it runs in this process or in another one.

`classifier.py` is the model itself; `serving/remote_models.py` asks one in another process. It needs no jax, so
that the command line refuses a wrong text at once.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from hfjax_app.errors import RequestRejected
from hfjax_app.limits import SENTIMENT_MAX_CHARACTERS, SENTIMENT_MAX_TEXTS
from hfjax_app.validation import checked_text

THRESHOLD = 0.5


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A classifier's answer for one text: the probability of each label.

    Args:
        scores: in the checkpoint's order.
        multi_label: whether the labels are independent of each other, so that several or none may apply.
        cut: whether the text was longer than the model reads, so that only a part was classified.
    """

    scores: dict[str, float]
    multi_label: bool = False
    cut: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that apply: the likeliest one; of independent labels all with at least THRESHOLD."""
        if self.multi_label:
            return tuple(label for label, score in self.scores.items() if score >= THRESHOLD)
        return (self.top,)

    @property
    def top(self) -> str:
        """The likeliest label."""
        return max(self.scores, key=self.scores.__getitem__)

    @property
    def probability(self) -> float:
        """The probability of the likeliest label."""
        return self.scores[self.top]


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What each word contributed to a label's logit.

    Args:
        label: the label.
        pieces: the whole text in order, as (characters, contribution); None for white space and for the part that was
            cut.
        logit: of the text.
        baseline: the logit of a text of padding of the same length.
    """

    label: str
    pieces: tuple[tuple[str, float | None], ...]
    logit: float
    baseline: float

    @property
    def error(self) -> float:
        """The difference of the contributions' sum and the logit's change, as a share of the change. 0: complete."""
        change = self.logit - self.baseline
        return abs(sum(value or 0.0 for _, value in self.pieces) - change) / max(abs(change), 1e-12)


def checked_texts(texts: object) -> list[str]:
    """The texts, if `classify` can take them.

    Raises:
        RequestRejected: not a list, too many texts, or one of them is not a text, empty or too long.
    """
    if not isinstance(texts, list):
        raise RequestRejected(f"texts: must be a list of texts, not {type(texts).__name__}")
    if len(texts) > SENTIMENT_MAX_TEXTS:
        raise RequestRejected(f"{len(texts):,} texts: at most {SENTIMENT_MAX_TEXTS} a call")
    for number, text in enumerate(texts, 1):
        checked_text(text, "text" if len(texts) == 1 else f"text {number}", SENTIMENT_MAX_CHARACTERS)
    return texts


class LabelScorer(Protocol):
    """Classifies texts with the caller's own labels."""

    def check(self, text: object, labels: object) -> object: ...

    def classify(self, text: str, labels: list[str]) -> dict[str, float]: ...


class SentimentModel(Protocol):
    """A classifier; `SentimentClassifier` documents the members."""

    @property
    def labels(self) -> Sequence[str]: ...

    @property
    def token_limit(self) -> int: ...

    @property
    def texts(self) -> int: ...

    @property
    def zero_shot(self) -> LabelScorer | None: ...

    def check(self, text: object, label: object = None) -> None: ...

    def submit(self, text: str) -> Future[Prediction]: ...

    def classify(self, texts: list[str]) -> list[dict[str, float]]: ...

    def predict(self, texts: list[str], *, urgent: bool = False) -> list[Prediction | Exception]: ...

    def explain(self, text: str, label: str | None = None, *, urgent: bool = True) -> Explanation: ...
