"""A classifier's prediction for one text."""

from dataclasses import dataclass

THRESHOLD = 0.5


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The probability of each label.

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
