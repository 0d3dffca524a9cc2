"""A sentiment model whose replicas are other processes, as the studio and the API see it."""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from hfjax_app.errors import RequestRejected
from hfjax_app.limits import SENTIMENT_MAX_CHARACTERS
from hfjax_app.sentiment.interface import Explanation, LabelScorer, Prediction
from hfjax_app.serving.refusal import Refusal
from hfjax_app.serving.remote_labels import RemoteLabels
from hfjax_app.serving.replica_calls import ReplicaCalls
from hfjax_app.validation import checked_text, quoted


class RemoteSentiment:
    """A `SentimentModel` that asks replicas.

    Args:
        calls: of its replicas.
        facts: from one of them.
    """

    def __init__(self, calls: ReplicaCalls, facts: Mapping[str, Any]):
        self.calls = calls
        self.labels: list[str] = facts["labels"]
        self.token_limit: int = facts["token_limit"]
        self.zero_shot: LabelScorer | None = RemoteLabels(calls) if facts["scores_labels"] else None

    @property
    def texts(self) -> int:
        return self.calls.figure("texts")

    def check(self, text: object, label: object = None) -> None:
        checked_text(text, "text", SENTIMENT_MAX_CHARACTERS)
        if label is not None and label not in self.labels:
            raise RequestRejected(f"label {quoted(label)}: must be one of {', '.join(self.labels)}")

    def submit(self, text: str) -> "Future[Prediction]":
        return self.calls.begin("predict_one", checked_text(text, "text", SENTIMENT_MAX_CHARACTERS))

    def classify(self, texts: list[str]) -> list[dict[str, float]]:
        scores: list[dict[str, float]] = self.calls.ask_from_thread("classify", texts)
        return scores

    def predict(self, texts: list[str], *, urgent: bool = False) -> list[Prediction | Exception]:
        found = self.calls.ask_from_thread("predict", texts, urgent)
        return [each.error() if isinstance(each, Refusal) else each for each in found]

    def explain(self, text: str, label: str | None = None, *, urgent: bool = True) -> Explanation:
        self.check(text, label)
        explanation: Explanation = self.calls.ask_from_thread("explain", text, label, urgent)
        return explanation
