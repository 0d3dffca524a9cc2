"""Zero-shot classification: which of the given labels fits a text, by the chat model's probabilities.

A label's score is the sum of its tokens' log-probabilities as the answer to a question about the text, minus the same
sum for an empty text. Without the subtraction, common and short labels would always win (Zhao et al., "Calibrate Before
Use", arXiv:2102.09690). The program `chat_score` computes them while conversations run: it has its own small
cache and never touches the slots. Models with recurrent layers have none: padding would change their states.
"""

import threading
from collections.abc import Sequence
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from hfjax_app.chat.engine.llm_engine import ChatEngine
from hfjax_app.chat.model.kv_cache import allocate, cache_shape
from hfjax_app.chat.model.model_runner import ModelRunner
from hfjax_app.chat.text.chat_template import ChatFormat
from hfjax_app.errors import ModelUnavailable, RequestRejected
from hfjax_app.limits import ZERO_SHOT_MAX_CHARACTERS, ZERO_SHOT_MAX_LABEL_CHARACTERS, ZERO_SHOT_MAX_LABELS
from hfjax_app.runtime.module import Weights
from hfjax_app.runtime.programs import Program
from hfjax_app.runtime.warm_up import ProgramSpec
from hfjax_app.validation import checked_label_names, checked_text

LABEL_TOKENS = 16
PROMPT_TOKENS = 256


class LabelScores:
    """Token ids of a question and of labels -> each label's sum of log-probabilities. `spec`'s program
    must have joined.

    Args:
        runner: gives the weights (for `plan`, their shapes) and the devices.

    Raises:
        ModelUnavailable: the context is too short for a question, or the model has recurrent layers.

    Attributes:
        prompt_tokens: tokens that a question may have at most.
    """

    def __init__(self, runner: ModelRunner):
        self.prompt_tokens = min(PROMPT_TOKENS, runner.context - LABEL_TOKENS)
        if self.prompt_tokens < LABEL_TOKENS:
            raise ModelUnavailable(f"a context of {runner.context} tokens has no room for a question about a text")
        self._weights = runner.weights
        self._program: Program | None = None
        self._decoder = runner.decoder.resized(context=self.prompt_tokens + LABEL_TOKENS, chunk=self.prompt_tokens)
        if self._decoder.is_recurrent:
            raise ModelUnavailable("this chat model has recurrent layers and can't score labels")

    def spec(self) -> ProgramSpec:
        """The program, described by shapes alone."""
        arguments = self._padded([0], [[0]])

        def join(program: Program) -> None:
            np.asarray(program(self._weights, *arguments))
            self._program = program

        return ProgramSpec(name="chat_score", function=self._score, args=(self._weights, *arguments), join=join)

    @property
    def is_ready(self) -> bool:
        return self._program is not None

    def __call__(self, prompt: Sequence[int], labels: Sequence[Sequence[int]]) -> np.ndarray:
        """float64 [labels].

        Args:
            prompt: 1 ... prompt_tokens token ids.
            labels: ZERO_SHOT_MAX_LABELS at most, each of 1 ... LABEL_TOKENS token ids.
        """
        assert self._program is not None, "the program has not joined"
        return np.asarray(self._program(self._weights, *self._padded(prompt, labels)), np.float64)[: len(labels)]

    def _padded(self, prompt: Sequence[int], labels: Sequence[Sequence[int]]) -> tuple[np.ndarray | np.generic, ...]:
        """The program's arguments after the weights."""
        padded = np.zeros(self.prompt_tokens, np.int32)
        padded[: len(prompt)] = prompt
        answers = np.zeros((ZERO_SHOT_MAX_LABELS, LABEL_TOKENS), np.int32)
        lengths = np.ones(ZERO_SHOT_MAX_LABELS, np.int32)
        for at, ids in enumerate(labels):
            answers[at, : len(ids)], lengths[at] = ids, len(ids)
        return padded, np.int32(len(prompt)), answers, lengths

    def _score(
        self, weights: Weights, prompt: jax.Array, length: jax.Array, labels: jax.Array, lengths: jax.Array
    ) -> jax.Array:
        """Sums of log-probabilities, float32 [labels].

        The question runs once. All labels then continue from its cache, each in its own copy.

        Args:
            weights: the model's.
            prompt: int32 [prompt_tokens]; the first `length` tokens are real.
            length: int32 scalar.
            labels: int32 [labels, LABEL_TOKENS]; the first `lengths` tokens of each are real.
            lengths: int32 [labels].
        """
        cache = jax.tree.map(lambda leaf: leaf[0], allocate(cache_shape(self._decoder.specs, 1)))
        logits, cache = self._decoder.forward(weights, prompt, cache, jnp.int32(0), length)
        index = jnp.arange(LABEL_TOKENS)

        def after_first(label: jax.Array, valid: jax.Array) -> jax.Array:
            following, _ = self._decoder.forward(weights, label, cache, length, valid, index)
            logprobs = _log_probability(following[:-1], label[1:])
            return jnp.where(index[1:] < valid, logprobs, 0.0).sum()

        first = _log_probability(jnp.broadcast_to(logits, (labels.shape[0], *logits.shape)), labels[:, 0])
        return first + jax.vmap(after_first)(labels, lengths)


def _log_probability(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    """float32 [n]: the log-probabilities of tokens [n] under logits [n, vocabulary]."""
    chosen = jnp.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
    return chosen.astype(jnp.float32) - jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1)


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
