"""Speculative decoding by prompt lookup: a call that drafts tokens from the conversation and verifies them.

A draft is what followed the newest tokens when they were last there (Saxena, "Prompt Lookup Decoding", 2023). The
model sees the newest token and its draft in one forward, samples at every place, and keeps what it would have made one
by one: a draw depends on a request's seed and the position only (sampling.py), so a drafted token is accepted where it
is the very token that is drawn there (Leviathan et al., arXiv:2211.17192, with an exact match in place of their ratio).
Whether drafting pays is speculation.py's question. Does not cover layers that keep a state: nothing can be taken back.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hfjax_app.chat.decode_state import NOT_A_NUMBER, DecodeState, Drafts, Made, nothing_made, sound
from hfjax_app.chat.kv_cache import KVCache
from hfjax_app.chat.logprobs import logprobs_of
from hfjax_app.chat.params import MAX_LOGPROBS
from hfjax_app.chat.penalties import occurrences
from hfjax_app.chat.sampling import sample
from hfjax_app.chat.speculation import NGRAMS

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
) -> tuple[KVCache, DecodeState, Made]:
    """Make tokens in one slot: `rounds` rounds at most, each one token and what is right of its draft.

    A round without a draft is a plain step of one token. Rows that a wrong draft has written are written again before
    any query may look at them; that no ring has lost a row that is still in a window, takes draft < its chunk
    (kv_cache.py).

    Args:
        forward: the model.
        is_end: which tokens end an answer.
        kv: the slot's cache, without slot axis.
        own: the slot's state, without slot axis.
        rounds: int32 scalar.
        tokens: int32 scalar, at most `most`; no row is written behind those that so many tokens take.
        most: room for tokens in the result.
        draft: tokens that a round drafts.
        vocabulary: how many token ids there are.

    Returns:
        The cache, the state, and what was made, [most, 1].
    """
    sampler = own.sampler.only(own.left > 0)
    top = min(MAX_LOGPROBS, vocabulary)
    offsets = jnp.arange(draft + 1)

    def verify(size: int, kv: KVCache, own: DecodeState, drafted: jax.Array, offered: jax.Array) -> Any:
        """The tokens that follow the newest one and the first size - 1 drafted ones; padded to draft + 1."""
        inputs = jnp.concatenate([own.token[None], drafted])[:size]
        logits, kv = forward(inputs, kv, own.position, 1 + offered)
        places = own.position + 1 + offsets[:size]
        state = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (size, *leaf.shape)), sampler)
        history = own.history.at[places[:-1]].set(inputs[1:], mode="drop")
        history = jnp.broadcast_to(history, (size, *history.shape))
        answer_from = jnp.broadcast_to(own.answer_from, (size,))
        seen = occurrences(sampler.penalties.used, history, answer_from, places, vocabulary)
        right = sound(logits)
        chosen = jnp.where(right, sample(logits, state, places, seen), own.token)
        logprobs = logprobs_of(state.logprobs, logits, chosen, MAX_LOGPROBS)
        padding = draft + 1 - size
        return kv, jax.tree.map(
            lambda leaf: jnp.pad(leaf, [(0, padding)] + [(0, 0)] * (leaf.ndim - 1)), (chosen, right, logprobs)
        )

    def once(size: int, wanted: jax.Array, kv: KVCache, result: Any, *arguments: Any) -> tuple[KVCache, Any]:
        """`verify` where it is wanted, in a loop of one round: a cache that goes through a conditional is copied."""

        def body(carry: Any) -> Any:
            return (jnp.bool_(False), *verify(size, carry[1], *arguments))

        return jax.lax.while_loop(lambda carry: carry[0], body, (wanted, kv, result))[1:]

    def goes_on(carry: Any) -> jax.Array:
        done, _, own, drafts, _ = carry
        return (drafts.rounds < rounds) & (done < tokens) & (own.left > 0)

    def round_(carry: Any) -> Any:
        done, kv, own, drafts, made = carry
        drafted, found = lookup(own.history, own.position, draft)
        offered = jnp.where(found, jnp.minimum(draft, jnp.minimum(own.left, tokens - done) - 1), 0)
        arguments = (own, drafted, offered)
        kv, result = once(draft + 1, offered > 0, kv, unread, *arguments)
        kv, (chosen, right, logprobs) = once(1, offered == 0, kv, result, *arguments)
        stops = is_end(chosen) | ~right
        agrees = (drafted == chosen[:-1]) & (offsets[:-1] < offered) & ~stops[:-1]
        accepted = jnp.sum(jnp.cumprod(agrees.astype(jnp.int32)))
        count = accepted + 1
        own = own._replace(
            token=chosen[accepted],
            position=own.position + count,
            left=jnp.where(stops[accepted], 0, own.left - count),
            history=own.history.at[_first(count, own.position + 1 + offsets, own.history)].set(chosen, mode="drop"),
        )
        drafts = Drafts(
            rounds=drafts.rounds + 1,
            drafted_rounds=drafts.drafted_rounds + (offered > 0),
            drafted=drafts.drafted + offered,
            accepted=drafts.accepted + accepted,
        )
        new = Made(jnp.where(right, chosen, NOT_A_NUMBER), logprobs)
        at = _first(count, done + offsets, made.tokens)
        made = jax.tree.map(lambda room, leaf: room.at[at, 0].set(leaf, mode="drop"), made, new)
        return done + count, kv, own, drafts, made

    blank = jax.tree.map(lambda leaf: leaf[:, 0], nothing_made(draft + 1, 1, top))
    unread = (blank.tokens, jnp.zeros(draft + 1, bool), blank.logprobs)
    none = Drafts(*[jnp.int32(0)] * 4)
    carry = (jnp.int32(0), kv, own, none, nothing_made(most, 1, top))
    _, kv, own, drafts, made = jax.lax.while_loop(goes_on, round_, carry)
    return kv, own, made._replace(drafts=drafts)


def _first(count: jax.Array, places: jax.Array, room: jax.Array) -> jax.Array:
    """The first `count` of these places; the others lie outside the room's first axis, where writes are dropped."""
    return jnp.where(jnp.arange(places.shape[0]) < count, places, room.shape[0])
