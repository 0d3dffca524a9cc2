"""Speculative decoding by prompt lookup: a call that drafts tokens from the conversation and verifies them.

A draft is what followed the newest tokens when they were last there (Saxena, "Prompt Lookup Decoding", 2023). The
model sees the newest token and its draft in one forward, samples at every place, and keeps what it would have made one
by one: a draw depends on a request's seed and the position only (sampler.py), so a drafted token is accepted where it
is the very token that is drawn there (Leviathan et al., arXiv:2211.17192, with an exact match in place of their ratio).
Whether drafting pays is draft_policy.py's question. Does not cover layers that keep a state: nothing can be taken back.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hfjax_app.chat.engine.draft_policy import NGRAMS
from hfjax_app.chat.model.decode_state import DecodeOutput, DecodeState, Drafts, advance, empty_output
from hfjax_app.chat.model.kv_cache import KVCache
from hfjax_app.chat.sampling.params import MAX_LOGPROBS
from hfjax_app.chat.sampling.penalties import occurrences
from hfjax_app.chat.sampling.sampler import unpacked

# Tokens int32 [n], one slot's cache, position, how many are real -> logits [n, vocabulary], the cache.
Forward = Callable[[jax.Array, KVCache, jax.Array, jax.Array], tuple[jax.Array, KVCache]]


def lookup(history: jax.Array, position: jax.Array, most: int) -> tuple[jax.Array, jax.Array]:
    """What may follow the newest token: what followed the longest n-gram of NGRAMS that ends with it.

    Of several earlier places the latest counts. Where what followed reaches the newest token, it goes on from its
    beginning, as in a text that repeats itself.

    Args:
        history: int32 [context], the token at each position up to `position`.
        position: int32 scalar, of the newest token.
        most: tokens to draft.

    Returns:
        int32 [most], and whether there is such a place.
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
    own: DecodeState,
    rounds: jax.Array,
    tokens: jax.Array,
    *,
    most: int,
    draft: int,
    vocabulary: int,
) -> tuple[KVCache, DecodeState, DecodeOutput]:
    """Make tokens in one slot: `rounds` rounds at most, each one token and what is right of its draft.

    A round without a draft is a plain step of one token. Rows that a wrong draft has written are written again before
    any query may look at them; that no ring has lost a row that is still in a window, takes draft < its chunk
    (kv_cache.py).

    Args:
        forward: the model.
        is_end: which tokens end an answer.
        kv: the slot's cache, without slot axis.
        own: the slot's state, with a slot axis of one.
        rounds: int32 scalar.
        tokens: int32 scalar, at most `most`; no row is written behind those that so many tokens take.
        most: room for tokens in the result.
        draft: tokens that a round drafts.
        vocabulary: how many token ids there are.

    Returns:
        The cache, the state, and what was made, [most, 1].
    """
    sampler = unpacked(own.sampler).only(own.left > 0)

    def once(size: int, wanted: jax.Array, kv: KVCache, logits: jax.Array, *arguments: jax.Array) -> Any:
        """A forward of `size` tokens where it is wanted, in a loop of one round: a conditional copies the cache."""

        def body(carry: Any) -> Any:
            inputs, position, valid = arguments
            new, kv = forward(inputs[:size], carry[1], position, valid)
            return jnp.bool_(False), kv, carry[2].at[:size].set(new.astype(jnp.float32))

        return jax.lax.while_loop(lambda carry: carry[0], body, (wanted, kv, logits))[1:]

    def goes_on(carry: Any) -> jax.Array:
        done, _, _, own, _, drafts, _ = carry
        return (drafts.rounds < rounds) & (done < tokens) & (own.left[0] > 0)

    def round_(carry: Any) -> Any:
        done, kv, logits, own, seen, drafts, made = carry
        drafted, found = lookup(own.history[0], own.position[0], draft)
        offered = jnp.where(found, jnp.minimum(draft, jnp.minimum(own.left[0], tokens - done) - 1), 0)
        arguments = (jnp.concatenate([own.token, drafted]), own.position[0], 1 + offered)
        kv, logits = once(draft + 1, offered > 0, kv, logits, *arguments)
        kv, logits = once(1, offered == 0, kv, logits, *arguments)

        def accept(carry: Any) -> Any:
            """The token that follows a right one; the next place's logits hold where it is the drafted one."""
            count, _, own, seen, made = carry
            own, seen, new = advance(own, logits[count][None], sampler, seen, is_end)
            made = jax.tree.map(lambda room, leaf: room.at[done + count].set(leaf), made, new)
            agrees = (count < offered) & (own.token[0] == drafted[count]) & (own.left[0] > 0)
            return count + 1, agrees, own, seen, made

        start = (jnp.int32(0), jnp.bool_(True), own, seen, made)
        count, _, own, seen, made = jax.lax.while_loop(lambda carry: carry[1], accept, start)
        drafts = Drafts(
            rounds=drafts.rounds + 1,
            drafted_rounds=drafts.drafted_rounds + (offered > 0),
            drafted=drafts.drafted + offered,
            accepted=drafts.accepted + count - 1,
        )
        return done + count, kv, logits, own, seen, drafts, made

    seen = occurrences(sampler.penalties.used[0], own.history, own.answer_from, own.position + 1, vocabulary)
    none = Drafts(*[jnp.int32(0)] * 4)
    made = empty_output(most, 1, min(MAX_LOGPROBS, vocabulary))
    carry = (jnp.int32(0), kv, jnp.zeros((draft + 1, vocabulary)), own, seen, none, made)
    _, kv, _, own, _, drafts, made = jax.lax.while_loop(goes_on, round_, carry)
    return kv, own, made._replace(drafts=drafts)
