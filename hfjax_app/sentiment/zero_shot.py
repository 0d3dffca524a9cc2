"""Zero-shot classification by a model for natural-language inference (NLI), as in transformers' pipeline.

Each label makes a sentence, "This example is LABEL.", and the model says how much a text entails it (Yin et al.,
arXiv:1909.00161); the logits of entailment are compared. Does not compute them: the classifier does.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hfjax_app.errors import ModelUnavailable
from hfjax_app.limits import ZERO_SHOT_MAX_CHARACTERS, ZERO_SHOT_MAX_LABEL_CHARACTERS, ZERO_SHOT_MAX_LABELS
from hfjax_app.validation import checked_label_names, checked_text

_HYPOTHESIS = "This example is {}."  # of transformers' pipeline

Pairs = Sequence[tuple[str, str]]


def entailment_of(model: Any) -> int | None:
    """The index of the label "entailment"; None where the model can't judge pairs of texts here.

    A model with embeddings of the first and the second text (BERT's token types) would need them as an input.
    """
    config = model.config
    if (getattr(config, "type_vocab_size", 0) or 0) > 1 or config.num_labels < 2:
        return None
    named = (index for index, label in config.id2label.items() if str(label).lower().startswith("entail"))
    return next(named, None)


class NliZeroShot:
    """Texts and labels -> probabilities.

    Args:
        entailment: the index of this label.
        logits: of pairs of texts: float [pairs, labels of the model].
    """

    def __init__(self, entailment: int, logits: Callable[[Pairs], np.ndarray]):
        self._entailment, self._logits = entailment, logits

    def check(self, text: object, labels: object) -> tuple[str, ...]:
        """Raise RequestRejected for what `classify` refuses; returns the labels."""
        checked_text(text, "text", ZERO_SHOT_MAX_CHARACTERS)
        return checked_label_names(labels, ZERO_SHOT_MAX_LABELS, ZERO_SHOT_MAX_LABEL_CHARACTERS)

    def classify(self, text: str, labels: list[str]) -> dict[str, float]:
        """The probability of each label, in the order given. A long text is cut at its end.

        Raises:
            RequestRejected: the value and the limit; nothing was computed.
            ModelUnavailable: the model's logits are not finite.
        """
        names = self.check(text, labels)
        logits = self._logits([(text, _HYPOTHESIS.format(name)) for name in names])[:, self._entailment]
        if not np.isfinite(logits).all():
            raise ModelUnavailable("the model's scores of these labels are not numbers (NaN or infinite)")
        shares = np.exp(logits - logits.max())
        return dict(zip(names, (shares / shares.sum()).tolist(), strict=True))
