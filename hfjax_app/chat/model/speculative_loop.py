"""Speculative decoding by prompt lookup: a call drafts tokens from the conversation and verifies them.

A draft is what followed the newest tokens where they last occurred (Saxena, "Prompt Lookup Decoding", 2023). One
forward takes the newest token and its draft, samples at every position, and keeps what plain decoding would have made.
A sample depends on the request's seed and the position only (sampler.py), so a drafted token is accepted if it equals
the token sampled at its position (Leviathan et al., arXiv:2211.17192, with an exact match in place of their ratio).
The engine decides whether to draft (decode_calls.py): never for recurrent layers, whose states can't be rolled back.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hfjax_app.chat.engine.decode_calls import NGRAMS
from hfjax_app.chat.model.decode_state import DecodeOutput, DecodeState, Drafts, advance, empty_output
from hfjax_app.chat.model.kv_cache import KVCache
from hfjax_app.chat.sampling.params import MAX_LOGPROBS
from hfjax_app.chat.sampling.penalties import occurrences
from hfjax_app.chat.sampling.sampler import unpacked

# Tokens int32 [n], one slot's cache, position, how many are real -> logits [n, vocabulary], the cache.
Forward = Callable[[jax.Array, KVCache, jax.Array, jax.Array], tuple[jax.Array, KVCache]]


def lookup(history: jax.Array, position: jax.Array, most: int) -> tuple[jax.Array, jax.Array]:
    """Draft what may follow the newest token: what followed the longest n-gram of NGRAMS that ends with it.

    The latest earlier occurrence counts. Where the continuation reaches the newest token, it repeats from its start, as
    in a text that repeats itself.

    Args:
        history: int32 [context], the token at each position up to `position`.
        position: int32 scalar, of the newest token.
        most: tokens to draft.

    Returns:
        int32 [most], and whether there is an earlier occurrence.
    """
    context = history.shape[0]
    index = jnp.arange(context)
    score = jnp.full(context, -1)
    for n in sorted(NGRAMS):
        same = (index < position) & (index >= n - 1)
        for back in range(n):
            same &= jnp.roll(history, back) == history[position - back]
        score = jnp.where(same, n * context + index, score)
    best = jnp.max(score)
    end = best % context
    period = jnp.maximum(position - end, 1)
    return history[end + 1 + jnp.arange(most) % period], best >= 0


def decode(
    forward: Forward,
    is_end: Callable[[jax.Array], jax.Array],
    kv: KVCache,
    state: DecodeState,
    rounds: jax.Array,
    tokens: jax.Array,
    *,
    most: int,
    draft: int,
    vocabulary: int,
    sees: bool = False,
) -> tuple[KVCache, DecodeState, DecodeOutput]:
    """Make tokens in one slot, in at most `rounds` rounds: one token and the accepted part of a draft in each.

    A round without a draft is a plain step of one token. Positions that a rejected draft has written are written again
    before any query may attend to them. Rings keep every position of their window because draft < the prefill chunk
    (kv_cache.py).

    Args:
        forward: the model.
        is_end: which tokens end an answer.
        kv: the slot's cache, without slot axis.
        state: the slot's state, with a slot axis of one.
        rounds: int32 scalar.
        tokens: int32 scalar, at most `most`; no position beyond those of so many tokens is written.
        most: tokens that the output has room for.
        draft: tokens that a round drafts.
        vocabulary: number of token ids.
        sees: whether the conversation may have pictures; a draft ends before one's tokens, whose ids are no token's.

    Returns:
        The cache, the state, and the output, [most, 1].
    """
    sampler = unpacked(state.sampler).only(state.left > 0)

    def once(size: int, wanted: jax.Array, kv: KVCache, logits: jax.Array, *arguments: jax.Array) -> Any:
        """A forward of `size` tokens if wanted, as a loop of one iteration, because a conditional copies the cache."""

        def body(carry: Any) -> Any:
            inputs, position, valid = arguments
            new, kv = forward(inputs[:size], carry[1], position, valid)
            return jnp.bool_(False), kv, carry[2].at[:size].set(new.astype(jnp.float32))

        return jax.lax.while_loop(lambda carry: carry[0], body, (wanted, kv, logits))[1:]

    def goes_on(carry: Any) -> jax.Array:
        done, _, _, state, _, drafts, _ = carry
        running: jax.Array = (drafts.rounds < rounds) & (done < tokens) & (state.left[0] > 0)
        return running

    def round_(carry: Any) -> Any:
        done, kv, logits, state, seen, drafts, output = carry
        drafted, found = lookup(state.history[0], state.position[0], draft)
        offered = jnp.where(found, jnp.minimum(draft, jnp.minimum(state.left[0], tokens - done) - 1), 0)
        if sees:
            offered = jnp.minimum(offered, jnp.argmax(jnp.append(drafted >= vocabulary, True)))
        arguments = (jnp.concatenate([state.token, drafted]), state.position[0], 1 + offered)
        kv, logits = once(draft + 1, offered > 0, kv, logits, *arguments)
        kv, logits = once(1, offered == 0, kv, logits, *arguments)

        def accept(carry: Any) -> Any:
            """Sample the next token; the logits after it are valid if it equals the drafted one."""
            count, _, state, seen, output = carry
            state, seen, new = advance(state, logits[count][None], sampler, seen, is_end)
            output = jax.tree.map(lambda room, leaf: room.at[done + count].set(leaf), output, new)
            agrees = (count < offered) & (state.token[0] == drafted[count]) & (state.left[0] > 0)
            return count + 1, agrees, state, seen, output

        start = (jnp.int32(0), jnp.bool_(True), state, seen, output)
        count, _, state, seen, output = jax.lax.while_loop(lambda carry: carry[1], accept, start)
        drafts = Drafts(
            rounds=drafts.rounds + 1,
            drafted_rounds=drafts.drafted_rounds + (offered > 0),
            drafted=drafts.drafted + offered,
            accepted=drafts.accepted + count - 1,
        )
        return done + count, kv, logits, state, seen, drafts, output

    seen = occurrences(sampler.penalties.used[0], state.history, state.answer_from, state.position + 1, vocabulary)
    none = Drafts(*[jnp.int32(0)] * 4)
    output = empty_output(most, 1, min(MAX_LOGPROBS, vocabulary))
    carry = (jnp.int32(0), kv, jnp.zeros((draft + 1, vocabulary)), state, seen, none, output)
    _, kv, _, state, _, drafts, output = jax.lax.while_loop(goes_on, round_, carry)
    return kv, state, output._replace(drafts=drafts)
