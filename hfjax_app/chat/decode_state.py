"""What changes on the device from token to token, and what a call has made there."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from hfjax_app.chat.logprobs import Logprobs
from hfjax_app.chat.sampling import SamplerState

# In place of a token: the slot made none, or its logits were not numbers.
NOTHING, NOT_A_NUMBER = -1, -2


class DecodeState(NamedTuple):
    """What changes from token to token, one entry a slot; lives on the device."""

    token: jax.Array  # int32 [slots], the newest token, not yet in the cache
    position: jax.Array  # int32 [slots], where that token goes
    left: jax.Array  # int32 [slots], tokens still to make; 0: the slot is finished or free
    history: jax.Array  # int32 [slots, context], the token at each position up to `position`, as in the cache
    answer_from: jax.Array  # int32 [slots], the position of the answer's first token
    sampler: SamplerState  # [slots, ...]


class Drafts(NamedTuple):
    """What became of a call's drafts, int32 scalars."""

    rounds: jax.Array  # that the call made
    drafted_rounds: jax.Array  # of these, with a draft to verify
    drafted: jax.Array  # tokens
    accepted: jax.Array  # of these, tokens that the model would have made by itself


class Made(NamedTuple):
    """Tokens that a call has made, on the device: leading axes [steps, slots], one step for a prefill."""

    tokens: jax.Array  # int32, or NOTHING, or NOT_A_NUMBER; an end token is the slot's last
    logprobs: Logprobs  # meaningful where the slot's request asked for them
    drafts: Drafts | None = None  # of a call that drafts


def nothing_made(steps: int, slots: int, top: int) -> Made:
    """Room for the tokens of so many steps and slots, with the log-probabilities of `top` likely ones each."""
    likeliest = (steps, slots, top)
    logprobs = Logprobs(jnp.zeros(likeliest[:2]), jnp.zeros(likeliest, jnp.int32), jnp.zeros(likeliest))
    return Made(jnp.full(likeliest[:2], NOTHING, jnp.int32), logprobs)


def sound(logits: jax.Array) -> jax.Array:
    """Whether logits [..., vocabulary] are numbers: no NaN, and something to choose (single ones may be -inf)."""
    return jnp.isfinite(jnp.max(logits, axis=-1))
