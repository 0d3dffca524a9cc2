"""Log-probabilities of the sampled tokens and of the likeliest alternatives, on the device and for the client."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Logprobs(NamedTuple):
    """On the device. Leading axes as those of the tokens; `top` is 5, or the vocabulary if that is smaller."""

    chosen: jax.Array  # float32 [...], of the sampled token
    top_tokens: jax.Array  # int32 [..., top], the likeliest first
    top_values: jax.Array  # float32 [..., top]


@dataclass(frozen=True, kw_only=True)
class TokenLogprobs:
    """One token of an answer: its log-probability (natural logarithm), and the likeliest tokens with theirs."""

    logprob: float
    top: tuple[tuple[int, float], ...]


def logprobs_of(wanted: jax.Array, logits: jax.Array, token: jax.Array, top: int) -> Logprobs:
    """log softmax of the model's logits, in float32.

    Args:
        wanted: bool [slots]; if none is True, nothing is computed and the result is zeros.
        logits: float [slots, vocabulary].
        token: int32 [slots], the sampled tokens.
        top: number of the likeliest tokens.
    """
    slots, vocabulary = logits.shape
    top = min(top, vocabulary)

    def compute() -> Logprobs:
        values = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
        top_values, top_tokens = jax.lax.top_k(values, top)
        chosen = jnp.take_along_axis(values, token[:, None], axis=-1)[:, 0]
        return Logprobs(chosen, top_tokens.astype(jnp.int32), top_values)

    def nothing() -> Logprobs:
        none = jnp.zeros((slots, top))
        return Logprobs(jnp.zeros(slots), none.astype(jnp.int32), none)

    found: Logprobs = jax.lax.cond(jnp.any(wanted), compute, nothing)
    return found


def token_logprobs(logprobs: Logprobs, top: int) -> tuple[TokenLogprobs, ...]:
    """Each token's TokenLogprobs, with the `top` likeliest; `logprobs` has numpy arrays with one leading axis."""
    likeliest = zip(logprobs.top_tokens[:, :top].tolist(), logprobs.top_values[:, :top].tolist(), strict=True)
    return tuple(
        TokenLogprobs(logprob=chosen, top=tuple(zip(tokens, values, strict=True)))
        for chosen, (tokens, values) in zip(np.asarray(logprobs.chosen).tolist(), likeliest, strict=True)
    )
