"""What a classifier says of one text."""

from dataclasses import dataclass

THRESHOLD = 0.5


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The probability of each label.

    Args:
        scores: in the checkpoint's order.
        multi_label: whether the labels are independent of each other, so that several or none may hold.
        cut: whether the text was longer than the model reads, so that only its beginning was judged.
    """

    scores: dict[str, float]
    multi_label: bool = False
    cut: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that hold: the likeliest one, or with independent labels all of at least THRESHOLD."""
        if self.multi_label:
            return tuple(label for label, score in self.scores.items() if score >= THRESHOLD)
        return (self.top,)

    @property
    def top(self) -> str:
        """The likeliest label."""
        return max(self.scores, key=self.scores.__getitem__)

    @property
    def probability(self) -> float:
        """The likeliest label's."""
        return self.scores[self.top]
