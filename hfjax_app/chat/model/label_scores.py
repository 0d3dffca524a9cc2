"""Log-probabilities of several labels as the answer to one question: the program `chat_score`.

The program has its own small cache and never touches the slots of running conversations. Handles token ids only. Does
not cover models with recurrent layers, because padding would change their states.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from hfjax_app.chat.model.kv_cache import allocate, cache_shape
from hfjax_app.chat.model.model_runner import ModelRunner
from hfjax_app.errors import ModelUnavailable
from hfjax_app.limits import ZERO_SHOT_MAX_LABELS
from hfjax_app.runtime.module import Weights
from hfjax_app.runtime.programs import Program
from hfjax_app.runtime.warm_up import ProgramSpec

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
