"""Classification with the caller's own labels by a model whose replicas are other processes."""

from hfjax_app.limits import ZERO_SHOT_MAX_CHARACTERS
from hfjax_app.serving.replica_calls import ReplicaCalls
from hfjax_app.validation import checked_text


class RemoteLabels:
    """A `LabelScorer` that asks replicas.

    Args:
        calls: of the model that judges.
    """

    def __init__(self, calls: ReplicaCalls):
        self._calls = calls

    def check(self, text: object, labels: object) -> None:
        """Raise RequestRejected for a text that no model takes; the replica checks the labels."""
        checked_text(text, "text", ZERO_SHOT_MAX_CHARACTERS)

    def classify(self, text: str, labels: list[str]) -> dict[str, float]:
        self.check(text, labels)
        scores: dict[str, float] = self._calls.ask_from_thread("label_scores", text, labels)
        return scores
