"""Plain decoding: each step makes one token in every running slot, until no slot runs or the steps are used up."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hfjax_app.chat.model.decode_state import DecodeOutput, DecodeState, advance, empty_output
from hfjax_app.chat.model.kv_cache import KVCache
from hfjax_app.chat.sampling.params import MAX_LOGPROBS
from hfjax_app.chat.sampling.penalties import occurrences
from hfjax_app.chat.sampling.sampler import unpacked
from hfjax_app.chat.sampling.token_mask import TokenMasks

# Tokens int32 [slots, 1], the slots' cache, positions, how many are real -> logits [slots, vocabulary], the cache.
Forward = Callable[[jax.Array, KVCache, jax.Array, jax.Array], tuple[jax.Array, KVCache]]


def decode(
    forward: Forward,
    is_end: Callable[[jax.Array], jax.Array],
    kv: KVCache,
    state: DecodeState,
    steps: jax.Array,
    masks: TokenMasks[jax.Array],
    *,
    most: int,
    vocabulary: int,
) -> tuple[KVCache, DecodeState, DecodeOutput]:
    """Make up to `steps` tokens in each slot; a slot with no tokens left to make does not change.

    Args:
        forward: the model.
        is_end: which tokens end an answer.
        kv: the slots' caches, with slot axis.
        state: the slots' states.
        steps: int32 scalar, at most `most`.
        masks: of the tokens that each slot may make; where one is used, `steps` must be 1.
        most: steps that the output has room for.
        vocabulary: number of token ids.

    Returns:
        The cache, the states, and the output, [most, slots].
    """
    count = state.token.shape[0]
    sampler = unpacked(state.sampler).only(state.left > 0)

    def goes_on(carry: Any) -> jax.Array:
        done, _, state, *_ = carry
        running: jax.Array = (done < steps) & jnp.any(state.left > 0)
        return running

    def step(carry: Any) -> Any:
        done, kv, state, seen, output = carry
        logits, kv = forward(state.token[:, None], kv, state.position, (state.left > 0).astype(jnp.int32))
        state, seen, new = advance(state, logits, sampler, seen, is_end, masks)
        output = jax.tree.map(lambda all_steps, leaf: all_steps.at[done].set(leaf), output, new)
        return done + 1, kv, state, seen, output

    seen = occurrences(
        jnp.any(sampler.penalties.used), state.history, state.answer_from, state.position + 1, vocabulary
    )
    output = empty_output(most, count, min(MAX_LOGPROBS, vocabulary))
    _, kv, state, _, output = jax.lax.while_loop(goes_on, step, (jnp.int32(0), kv, state, seen, output))
    return kv, state, output
