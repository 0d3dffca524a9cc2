"""What changes on the device from token to token, and what a call has made there."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from hfjax_app.chat.sampling.logprobs import Logprobs, logprobs_of
from hfjax_app.chat.sampling.params import MAX_LOGPROBS
from hfjax_app.chat.sampling.penalties import Occurrences
from hfjax_app.chat.sampling.sampler import SamplerState, sample

# In place of a token: the slot made none, or its logits were not numbers.
NOTHING, NOT_A_NUMBER = -1, -2


class DecodeState(NamedTuple):
    """What changes from token to token, one entry a slot; lives on the device."""

    token: jax.Array  # int32 [slots], the newest token, not yet in the cache
    position: jax.Array  # int32 [slots], where that token goes
    left: jax.Array  # int32 [slots], tokens still to make; 0: the slot is finished or free
    history: jax.Array  # int32 [slots, context], the token at each position up to `position`, as in the cache
    answer_from: jax.Array  # int32 [slots], the position of the answer's first token
    sampler: jax.Array  # uint32 [slots, words], sampling.packed

    def updated(self, slots: jax.Array, own: "DecodeState") -> "DecodeState":
        """With what tokens have changed in these slots (int32 [n], each once); the rest is the request's."""
        changing = ("token", "position", "left", "history")
        return self._replace(**{name: getattr(self, name).at[slots].set(getattr(own, name)) for name in changing})


class Drafts(NamedTuple):
    """What became of a call's drafts, int32 scalars."""

    rounds: jax.Array  # that the call made
    drafted_rounds: jax.Array  # of these, with a draft to verify
    drafted: jax.Array  # tokens
    accepted: jax.Array  # of these, tokens that the model would have made by itself


class DecodeOutput(NamedTuple):
    """Tokens that a call has made, on the device: leading axes [steps, slots], one step for a prefill."""

    tokens: jax.Array  # int32, or NOTHING, or NOT_A_NUMBER; an end token is the slot's last
    logprobs: Logprobs  # meaningful where the slot's request asked for them
    drafts: Drafts | None = None  # of a call that drafts


def empty_output(steps: int, slots: int, top: int) -> DecodeOutput:
    """Room for the tokens of so many steps and slots, with the log-probabilities of `top` likely ones each."""
    likeliest = (steps, slots, top)
    logprobs = Logprobs(jnp.zeros(likeliest[:2]), jnp.zeros(likeliest, jnp.int32), jnp.zeros(likeliest))
    return DecodeOutput(jnp.full(likeliest[:2], NOTHING, jnp.int32), logprobs)


def is_finite(logits: jax.Array) -> jax.Array:
    """Whether logits [..., vocabulary] are numbers: no NaN, and something to choose (single ones may be -inf)."""
    return jnp.isfinite(jnp.max(logits, axis=-1))


def advance(
    own: DecodeState,
    logits: jax.Array,
    sampler: SamplerState,
    seen: Occurrences,
    is_end: Callable[[jax.Array], jax.Array],
) -> tuple[DecodeState, Occurrences, DecodeOutput]:
    """One more token in every slot that has some left to make; the others stay as they are.

    Args:
        own: the slots' states.
        logits: float [slots, vocabulary], what follows the newest token.
        sampler: in place of the states' own, to turn off what is not asked for.
        seen: the tokens of prompt and answer so far.
        is_end: which tokens end an answer.

    Returns:
        The states, the tokens with one more, and what was made: leading axis [slots].
    """
    running, right = own.left > 0, is_finite(logits)
    position = own.position + running
    token = jnp.where(running & right, sample(logits, sampler, position, seen), own.token)
    made = DecodeOutput(
        tokens=jnp.where(running, jnp.where(right, token, NOT_A_NUMBER), NOTHING),
        logprobs=logprobs_of(sampler.logprobs, logits, token, MAX_LOGPROBS),
    )
    own = own._replace(
        token=token,
        position=position,
        left=jnp.where(running & right & ~is_end(token), own.left - 1, 0),
        history=own.history.at[jnp.arange(len(token)), position].set(token, mode="drop"),
    )
    return own, seen.add(token, running), made
