"""Plain decoding: each step makes one token in every slot that runs, for as long as one does."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hfjax_app.chat.model.decode_state import DecodeOutput, DecodeState, advance, empty_output
from hfjax_app.chat.model.kv_cache import KVCache
from hfjax_app.chat.sampling.params import MAX_LOGPROBS
from hfjax_app.chat.sampling.penalties import occurrences
from hfjax_app.chat.sampling.sampler import unpacked

# Tokens int32 [slots, 1], the slots' cache, positions, how many are real -> logits [slots, vocabulary], the cache.
Forward = Callable[[jax.Array, KVCache, jax.Array, jax.Array], tuple[jax.Array, KVCache]]


def decode(
    forward: Forward,
    is_end: Callable[[jax.Array], jax.Array],
    kv: KVCache,
    own: DecodeState,
    steps: jax.Array,
    *,
    most: int,
    vocabulary: int,
) -> tuple[KVCache, DecodeState, DecodeOutput]:
    """Make up to `steps` tokens in each slot; a slot with none left to make stays as it is.

    Args:
        forward: the model.
        is_end: which tokens end an answer.
        kv: the slots' caches, with slot axis.
        own: the slots' states.
        steps: int32 scalar, at most `most`.
        most: room for steps in the result.
        vocabulary: how many token ids there are.

    Returns:
        The cache, the state, and what was made, [most, slots].
    """
    count = own.token.shape[0]
    sampler = unpacked(own.sampler).only(own.left > 0)

    def goes_on(carry: Any) -> jax.Array:
        done, _, own, *_ = carry
        return (done < steps) & jnp.any(own.left > 0)

    def step(carry: Any) -> Any:
        done, kv, own, seen, made = carry
        logits, kv = forward(own.token[:, None], kv, own.position, (own.left > 0).astype(jnp.int32))
        own, seen, new = advance(own, logits, sampler, seen, is_end)
        made = jax.tree.map(lambda all_steps, leaf: all_steps.at[done].set(leaf), made, new)
        return done + 1, kv, own, seen, made

    seen = occurrences(jnp.any(sampler.penalties.used), own.history, own.answer_from, own.position + 1, vocabulary)
    made = empty_output(most, count, min(MAX_LOGPROBS, vocabulary))
    _, kv, own, _, made = jax.lax.while_loop(goes_on, step, (jnp.int32(0), kv, own, seen, made))
    return kv, own, made
