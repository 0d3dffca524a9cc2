"""Zero-shot classification: which of the given labels fits a text, by the chat model's probabilities.

A label's score is the sum of its tokens' log-probabilities as the answer to a question about the text, minus the same
sum for an empty text. Without the subtraction, common and short labels would always win (Zhao et al., "Calibrate Before
Use", arXiv:2102.09690). `label_scores.py` computes them while conversations run.
"""

import threading
from functools import lru_cache

import numpy as np

from hfjax_app.chat.engine.llm_engine import ChatEngine
from hfjax_app.chat.model.label_scores import LABEL_TOKENS, LabelScores
from hfjax_app.chat.text.chat_template import ChatFormat
from hfjax_app.errors import ModelUnavailable, RequestRejected
from hfjax_app.limits import ZERO_SHOT_MAX_CHARACTERS, ZERO_SHOT_MAX_LABEL_CHARACTERS, ZERO_SHOT_MAX_LABELS
from hfjax_app.runtime.warm_up import ProgramSpec
from hfjax_app.validation import checked_label_names, checked_text

Labels = tuple[str, ...]


class ZeroShot:
    """Texts and labels -> probabilities, with the weights of a chat engine. Thread-safe: a lock serialises the calls.

    Args:
        engine: a chat engine with a tokenizer; it may serve at the same time.

    Raises:
        ModelUnavailable: the engine has no tokenizer, or the model has recurrent layers.
    """

    def __init__(self, engine: ChatEngine):
        if engine.tokenizer is None:
            raise ModelUnavailable("this chat model has no tokenizer")
        self._format = ChatFormat(engine.tokenizer)
        self._label_scores = LabelScores(engine.runner)
        self.prompt_tokens = self._label_scores.prompt_tokens
        self._lock = threading.Lock()
        self._empty_text_scores = lru_cache(maxsize=64)(lambda labels: self._scores("", labels))

    def spec(self) -> ProgramSpec:
        """The program; `classify` is refused until it has joined."""
        return self._label_scores.spec()

    def classify(self, text: str, labels: list[str]) -> dict[str, float]:
        """The probability of each label, in the order given.

        Args:
            text: what to classify.
            labels: 2 to ZERO_SHOT_MAX_LABELS different names, each of at most ZERO_SHOT_MAX_LABEL_CHARACTERS and
                LABEL_TOKENS tokens.

        Raises:
            RequestRejected: the value and the limit; nothing was computed.
            ModelUnavailable: the program is still compiled, or the model's scores are NaN or infinite.
        """
        names = self.check(text, labels)
        self._check_ready()
        with self._lock:
            scores = self._scores(text, names) - self._empty_text_scores(names)
        if not np.isfinite(scores).all():
            raise ModelUnavailable("the chat model's scores of these labels are not numbers (NaN or infinite)")
        shares = np.exp(scores - scores.max())
        return dict(zip(names, (shares / shares.sum()).tolist(), strict=True))

    def check(self, text: object, labels: object) -> Labels:
        """Raise RequestRejected for what `classify` refuses, except too many tokens together; returns the labels."""
        checked_text(text, "text", ZERO_SHOT_MAX_CHARACTERS)
        return self._checked(labels)

    def log_probabilities(self, text: str, labels: list[str]) -> list[float]:
        """Each label's sum of log-probabilities, not calibrated; `text` may be empty. Raises: as `classify`."""
        checked_text(text, "text", ZERO_SHOT_MAX_CHARACTERS, may_be_blank=True)
        self._check_ready()
        with self._lock:
            scores: list[float] = self._scores(text, self._checked(labels)).tolist()
        return scores

    def prompt(self, text: str, labels: Labels) -> list[int]:
        """The token ids of the question, up to the start of the model's answer."""
        question = f"Text: {text}\n\nWhich of these labels fits the text: {', '.join(labels)}? Answer with the label."
        return self._format.encode([{"role": "user", "content": question}])

    def label_tokens(self, label: str) -> list[int]:
        """The answer's token ids."""
        return self._format.encode_text(label)

    def _check_ready(self) -> None:
        if not self._label_scores.is_ready:
            raise ModelUnavailable("the program that scores labels is still being compiled; try again in a moment")

    def _checked(self, labels: object) -> Labels:
        names = checked_label_names(labels, ZERO_SHOT_MAX_LABELS, ZERO_SHOT_MAX_LABEL_CHARACTERS)
        for name in names:
            if (count := len(self.label_tokens(name))) > LABEL_TOKENS:
                raise RequestRejected(f"label {name!r} of {count} tokens: at most {LABEL_TOKENS}")
        return names

    def _scores(self, text: str, labels: Labels) -> np.ndarray:
        """float64 [labels]; call with the lock held."""
        question = self.prompt(text, labels)
        if len(question) > self.prompt_tokens:
            raise RequestRejected(
                f"text and labels of {len(question):,} tokens with the question: at most {self.prompt_tokens}"
            )
        return self._label_scores(question, [self.label_tokens(label) for label in labels])
