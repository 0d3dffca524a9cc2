"""Log-probabilities of the tokens made and of the likeliest ones in their place, on the device and handed out."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Logprobs(NamedTuple):
    """On the device. Leading axes as those of the tokens; `top` is 5, or the vocabulary where that is smaller."""

    chosen: jax.Array  # float32 [...], of the token made
    top_tokens: jax.Array  # int32 [..., top], the likeliest first
    top_values: jax.Array  # float32 [..., top]


@dataclass(frozen=True, kw_only=True)
class TokenLogprobs:
    """Of one token of an answer: its log-probability (natural logarithm), and the likeliest tokens with theirs."""

    logprob: float
    top: tuple[tuple[int, float], ...]


def logprobs_of(wanted: jax.Array, logits: jax.Array, token: jax.Array, top: int) -> Logprobs:
    """log softmax of the model's logits, in float32.

    Args:
        wanted: bool [slots]; where none is True, nothing is computed and zeros come back.
        logits: float [slots, vocabulary].
        token: int32 [slots], the tokens made.
        top: how many of the likeliest tokens.
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


def handed_out(logprobs: Logprobs, top: int) -> tuple[TokenLogprobs, ...]:
    """Each token's TokenLogprobs, with `top` of the likeliest; `logprobs` has numpy arrays with one leading axis."""
    likeliest = zip(logprobs.top_tokens[:, :top].tolist(), logprobs.top_values[:, :top].tolist(), strict=True)
    return tuple(
        TokenLogprobs(logprob=chosen, top=tuple(zip(tokens, values, strict=True)))
        for chosen, (tokens, values) in zip(np.asarray(logprobs.chosen).tolist(), likeliest, strict=True)
    )
