"""Zero-shot classification: which of the labels that somebody types fits a text, by the chat model's probabilities.

A label's score is the sum of its tokens' log-probabilities as the answer to a question about the text, less the same
sum where the text is empty: without that, common and short labels would always win (Zhao et al., "Calibrate Before
Use", arXiv:2102.09690). One program judges all labels at once. It has a small cache of its own, so it never touches the
slots of running conversations. Does not cover models with recurrent layers, whose states padding would change.
"""

import threading
from collections.abc import Callable
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from hfjax_app.chat.conversation import ChatFormat
from hfjax_app.chat.engine import ChatEngine
from hfjax_app.chat.kv_cache import allocate, cache_shape
from hfjax_app.errors import ModelUnavailable, RequestRejected
from hfjax_app.runtime.module import Weights
from hfjax_app.runtime.programs import ProgramReport, Programs
from hfjax_app.text import checked_text

MAX_CHARACTERS = 10_000
MAX_LABELS = 10
MAX_LABEL_CHARACTERS = 60
LABEL_TOKENS = 16
PROMPT_TOKENS = 256

Labels = tuple[str, ...]


class ZeroShot:
    """Texts and labels -> probabilities, on the weights of a chat engine. Thread-safe: callers take turns.

    Args:
        engine: a chat engine with a tokenizer; it may serve meanwhile.
        on_report: called with the program's report.

    Raises:
        ModelUnavailable: the engine has no tokenizer, or the model has recurrent layers.
    """

    def __init__(self, engine: ChatEngine, on_report: Callable[[ProgramReport], None] = lambda report: None):
        if engine.tokenizer is None:
            raise ModelUnavailable("this chat model has no tokenizer")
        self.prompt_tokens = min(PROMPT_TOKENS, engine.context - LABEL_TOKENS)
        if self.prompt_tokens < LABEL_TOKENS:
            raise ModelUnavailable(f"a context of {engine.context} tokens has no room for a question about a text")
        self._format = ChatFormat(engine.tokenizer)
        self._weights = engine.runner.weights
        context = self.prompt_tokens + LABEL_TOKENS
        self._decoder = engine.runner.decoder.resized(context=context, chunk=self.prompt_tokens)
        if any(spec.is_recurrent for spec in self._decoder.specs):
            raise ModelUnavailable("this chat model keeps a recurrent state and can't judge labels")
        self._turn = threading.Lock()
        self._of_no_text = lru_cache(maxsize=64)(lambda labels: self._scores("", labels))
        prompt, labels = np.zeros(self.prompt_tokens, np.int32), np.zeros((MAX_LABELS, LABEL_TOKENS), np.int32)
        arguments = prompt, np.int32(1), labels, np.ones(MAX_LABELS, np.int32)
        self._program = Programs(on_report, engine.runner.mesh).compile(
            "chat_score", self._score, self._weights, *arguments
        )
        np.asarray(self._program(self._weights, *arguments))

    def classify(self, text: str, labels: list[str]) -> dict[str, float]:
        """The probability of each label, in the order given.

        Args:
            text: what to classify.
            labels: 2 to MAX_LABELS different names, of at most MAX_LABEL_CHARACTERS and LABEL_TOKENS tokens each.

        Raises:
            RequestRejected: the value and the limit; nothing was computed.
            ModelUnavailable: the model's scores are no numbers.
        """
        checked_text(text, "text", MAX_CHARACTERS)
        names = self._checked(labels)
        with self._turn:
            scores = self._scores(text, names) - self._of_no_text(names)
        if not np.isfinite(scores).all():
            raise ModelUnavailable("the chat model's scores of these labels are no numbers (NaN or infinite)")
        shares = np.exp(scores - scores.max())
        return dict(zip(names, (shares / shares.sum()).tolist(), strict=True))

    def log_probabilities(self, text: str, labels: list[str]) -> list[float]:
        """Each label's sum of log-probabilities, not calibrated; `text` may be empty. Raises: as `classify`."""
        checked_text(text, "text", MAX_CHARACTERS, may_be_blank=True)
        with self._turn:
            return self._scores(text, self._checked(labels)).tolist()

    def prompt(self, text: str, labels: Labels) -> list[int]:
        """The question's token ids, up to where the model would answer."""
        question = f"Text: {text}\n\nWhich of these labels fits the text: {', '.join(labels)}? Answer with the label."
        return self._format.encode([{"role": "user", "content": question}])

    def label_tokens(self, label: str) -> list[int]:
        """The answer's token ids."""
        return self._format.encode_text(label)

    def _checked(self, labels: list[str]) -> Labels:
        if not isinstance(labels, list):
            raise RequestRejected(f"labels: must be a list of texts, not {type(labels).__name__}")
        if not 2 <= len(labels) <= MAX_LABELS:
            raise RequestRejected(f"{len(labels)} labels: must be 2 to {MAX_LABELS}")
        names = tuple(checked_text(label, "label", MAX_LABEL_CHARACTERS).strip() for label in labels)
        for at, name in enumerate(names):
            if name.casefold() in (other.casefold() for other in names[:at]):
                raise RequestRejected(f"label {name!r} is there twice")
            if (count := len(self.label_tokens(name))) > LABEL_TOKENS:
                raise RequestRejected(f"label {name!r} of {count} tokens: at most {LABEL_TOKENS}")
        return names

    def _scores(self, text: str, labels: Labels) -> np.ndarray:
        """float64 [labels]; the caller has the turn."""
        question = self.prompt(text, labels)
        if len(question) > self.prompt_tokens:
            raise RequestRejected(
                f"text and labels of {len(question):,} tokens with the question: at most {self.prompt_tokens}"
            )
        prompt = np.zeros(self.prompt_tokens, np.int32)
        prompt[: len(question)] = question
        rows, lengths = np.zeros((MAX_LABELS, LABEL_TOKENS), np.int32), np.ones(MAX_LABELS, np.int32)
        for at, label in enumerate(labels):
            ids = self.label_tokens(label)
            rows[at, : len(ids)], lengths[at] = ids, len(ids)
        scores = self._program(self._weights, prompt, np.int32(len(question)), rows, lengths)
        return np.asarray(scores, np.float64)[: len(labels)]

    def _score(
        self, weights: Weights, prompt: jax.Array, length: jax.Array, labels: jax.Array, lengths: jax.Array
    ) -> jax.Array:
        """Sums of log-probabilities, float32 [labels].

        The question runs once; then all labels go on from its cache, each in its own copy.

        Args:
            weights: the model's.
            prompt: int32 [prompt_tokens], the first `length` real.
            length: int32 scalar.
            labels: int32 [labels, LABEL_TOKENS], the first `lengths` of each real.
            lengths: int32 [labels].
        """
        cache = jax.tree.map(lambda leaf: leaf[0], allocate(cache_shape(self._decoder.specs, 1)))
        logits, cache = self._decoder.forward(weights, prompt, cache, jnp.int32(0), length)
        index = jnp.arange(LABEL_TOKENS)

        def behind_first(label: jax.Array, valid: jax.Array) -> jax.Array:
            following, _ = self._decoder.forward(weights, label, cache, length, valid, index)
            logprobs = _log_probability(following[:-1], label[1:])
            return jnp.where(index[1:] < valid, logprobs, 0.0).sum()

        first = _log_probability(jnp.broadcast_to(logits, (labels.shape[0], *logits.shape)), labels[:, 0])
        return first + jax.vmap(behind_first)(labels, lengths)


def _log_probability(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    """float32 [n]: of tokens [n] by logits [n, vocabulary]."""
    chosen = jnp.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
    return chosen.astype(jnp.float32) - jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1)
