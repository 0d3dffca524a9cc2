"""The state that changes on the device with each token, and the output of a call."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from hfjax_app.chat.sampling.logprobs import Logprobs, logprobs_of
from hfjax_app.chat.sampling.params import MAX_LOGPROBS
from hfjax_app.chat.sampling.penalties import Occurrences
from hfjax_app.chat.sampling.sampler import SamplerState, sample
from hfjax_app.chat.sampling.token_mask import TokenMasks

# In place of a token: the slot made none, or its logits were not numbers.
NOTHING, NOT_A_NUMBER = -1, -2


class DecodeState(NamedTuple):
    """What changes with each token, one entry per slot, on the device."""

    token: jax.Array  # int32 [slots], the newest token, not yet in the cache
    position: jax.Array  # int32 [slots], of that token
    left: jax.Array  # int32 [slots], tokens still to make; 0: the slot is finished or free
    history: jax.Array  # int32 [slots, context], the token at each position up to `position`, as in the cache
    answer_from: jax.Array  # int32 [slots], the position of the answer's first token
    sampler: jax.Array  # uint32 [slots, words], sampler.packed

    def updated(self, slots: jax.Array, new: "DecodeState") -> "DecodeState":
        """Replace these slots' entries (int32 [n], all different) in the fields that tokens change."""
        changing = ("token", "position", "left", "history")
        return self._replace(**{name: getattr(self, name).at[slots].set(getattr(new, name)) for name in changing})


class Drafts(NamedTuple):
    """Counts of a call's drafts, int32 scalars."""

    rounds: jax.Array  # that the call made
    drafted_rounds: jax.Array  # rounds with a draft to verify
    drafted: jax.Array  # drafted tokens
    accepted: jax.Array  # drafted tokens that equal the model's own


class DraftCounts(NamedTuple):
    """`Drafts` on the host."""

    rounds: int
    drafted_rounds: int
    drafted: int
    accepted: int


class DecodeOutput(NamedTuple):
    """The tokens of a call, on the device: leading axes [steps, slots], one step for a prefill."""

    tokens: jax.Array  # int32, or NOTHING, or NOT_A_NUMBER; an end token is the slot's last
    logprobs: Logprobs  # meaningful where the slot's request asked for them
    drafts: Drafts | None = None  # of a call that drafts


def empty_output(steps: int, slots: int, top: int) -> DecodeOutput:
    """An output with room for so many steps and slots, and for the log-probabilities of `top` likely tokens each."""
    likeliest = (steps, slots, top)
    logprobs = Logprobs(jnp.zeros(likeliest[:2]), jnp.zeros(likeliest, jnp.int32), jnp.zeros(likeliest))
    return DecodeOutput(jnp.full(likeliest[:2], NOTHING, jnp.int32), logprobs)


def is_finite(logits: jax.Array) -> jax.Array:
    """Whether logits [..., vocabulary] can be sampled: no NaN, and a finite maximum (single ones may be -inf)."""
    return jnp.isfinite(jnp.max(logits, axis=-1))


def advance(
    state: DecodeState,
    logits: jax.Array,
    sampler: SamplerState[jax.Array],
    seen: Occurrences,
    is_end: Callable[[jax.Array], jax.Array],
    masks: TokenMasks[jax.Array] | None = None,
) -> tuple[DecodeState, Occurrences, DecodeOutput]:
    """Add one token to every slot that has tokens left to make; the others do not change.

    Args:
        state: the slots' states.
        logits: float [slots, vocabulary], after the newest token.
        sampler: used in place of `state.sampler`, with unused features turned off.
        seen: the tokens of prompt and answer so far.
        is_end: which tokens end an answer.
        masks: of the tokens that are allowed; None: all are.

    Returns:
        The states, the seen tokens with one more, and the output: leading axis [slots].
    """
    running, finite = state.left > 0, is_finite(logits)
    position = state.position + running
    token = jnp.where(running & finite, sample(logits, sampler, position, seen, masks), state.token)
    output = DecodeOutput(
        tokens=jnp.where(running, jnp.where(finite, token, NOT_A_NUMBER), NOTHING),
        logprobs=logprobs_of(sampler.logprobs, logits, token, MAX_LOGPROBS),
    )
    state = state._replace(
        token=token,
        position=position,
        left=jnp.where(running & finite & ~is_end(token), state.left - 1, 0),
        history=state.history.at[jnp.arange(len(token)), position].set(token, mode="drop"),
    )
    return state, seen.add(token, running), output
