"""What the studio and the API use of a classifier, whether it runs in this process or in another one.

`classifier.py` is the model itself; `serving/remote_sentiment.py` asks one in another process.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # the page is served before jax is imported
    from hfjax_app.sentiment.explanation import Explanation
    from hfjax_app.sentiment.prediction import Prediction


class LabelScorer(Protocol):
    """Classifies texts with the caller's own labels, see `zero_shot.py`."""

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

    def submit(self, text: str) -> "Future[Prediction]": ...

    def classify(self, texts: list[str]) -> list[dict[str, float]]: ...

    def predict(self, texts: list[str], *, urgent: bool = False) -> "list[Prediction | Exception]": ...

    def explain(self, text: str, label: str | None = None, *, urgent: bool = True) -> "Explanation": ...
