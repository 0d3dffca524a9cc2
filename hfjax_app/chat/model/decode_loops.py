"""Decoding on the device: the state that changes with each token, and the loops that make tokens, plain or drafted.

Every token is made by `advance`: of a prompt's last chunk, in `decode` and in `speculate` alike.

`decode` is plain: each step makes one token in every running slot, until no slot runs or the steps are used up.

`speculate` decodes one slot by prompt lookup: a round drafts tokens from the conversation and verifies them. A draft is
what followed the newest tokens where they last occurred (Saxena, "Prompt Lookup Decoding", 2023). One forward takes the
newest token and its draft, samples at every position, and keeps what plain decoding would have made. A sample depends
on the request's seed and the position only (sampler.py), so a drafted token is accepted if it equals the token sampled
at its position (Leviathan et al., arXiv:2211.17192, with an exact match in place of their ratio). The engine decides
whether to draft (decode_calls.py): never for recurrent layers, whose states can't be rolled back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hfjax_app.chat.engine.decode_calls import NGRAMS
from hfjax_app.chat.model.kv_cache import KVCache
from hfjax_app.chat.sampling.logprobs import Logprobs, logprobs_of
from hfjax_app.chat.sampling.params import MAX_LOGPROBS
from hfjax_app.chat.sampling.sampler import Ending, Occurrences, SamplerState, TokenMasks, occurrences, sample, unpacked

# In place of a token: the slot made none, or its logits were not numbers.
NOTHING, NOT_A_NUMBER = -1, -2

# Tokens, the cache, position, how many tokens are real -> logits, the cache. In `decode` of all slots: tokens int32
# [slots, 1], logits [slots, vocabulary]. In `speculate` of one: tokens int32 [n], logits [n, vocabulary].
Forward = Callable[[jax.Array, KVCache, jax.Array, jax.Array], tuple[jax.Array, KVCache]]


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """What is the same in all calls of a model. Another value of any field is another program.

    Args:
        vocabulary: how many token ids there are.
        end_tokens: ids that end an answer.
        steps: tokens a call makes for each slot, at most.
        draft: tokens that a speculative round drafts.
        sees: whether conversations may have pictures, whose tokens `history` has as `vocabulary`: no token's id.
    """

    vocabulary: int
    end_tokens: tuple[int, ...]
    steps: int
    draft: int
    sees: bool

    def is_end(self, token: jax.Array) -> jax.Array:
        """Which tokens (int32 [...]) end an answer."""
        if not self.end_tokens:
            return jnp.zeros_like(token, bool)
        return jnp.any(token[..., None] == jnp.array(self.end_tokens, jnp.int32), axis=-1)

    def empty_output(self, steps: int, slots: int) -> "DecodeOutput":
        """An output with room for so many steps and slots."""
        likeliest = (steps, slots, min(MAX_LOGPROBS, self.vocabulary))
        logprobs = Logprobs(jnp.zeros(likeliest[:2]), jnp.zeros(likeliest, jnp.int32), jnp.zeros(likeliest))
        return DecodeOutput(jnp.full(likeliest[:2], NOTHING, jnp.int32), logprobs)


class DecodeState(NamedTuple):
    """What changes with each token, one entry per slot, on the device."""

    token: jax.Array  # int32 [slots], the newest token, not yet in the cache
    position: jax.Array  # int32 [slots], of that token
    left: jax.Array  # int32 [slots], tokens still to make; 0: the slot is finished or free
    history: jax.Array  # int32 [slots, context], the token at each position up to `position`, as in the cache
    answer_from: jax.Array  # int32 [slots], the position of the answer's first token
    sampler: jax.Array  # uint32 [slots, words], sampler.packed
    shift: jax.Array | None = None  # int32 [slots], as in `Decoder.forward`; None: no conversation has one

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
    prompt: Logprobs | None = None  # of a call that scores: of the token after each of its tokens, [chunk]


def is_finite(logits: jax.Array) -> jax.Array:
    """Whether logits [..., vocabulary] can be sampled: no NaN, and a finite maximum (single ones may be -inf)."""
    return jnp.isfinite(jnp.max(logits, axis=-1))


def advance(
    state: DecodeState,
    logits: jax.Array,
    sampler: SamplerState[jax.Array],
    seen: Occurrences,
    decoding: Decoding,
    masks: TokenMasks[jax.Array] | None = None,
) -> tuple[DecodeState, Occurrences, DecodeOutput]:
    """Add one token to every slot that has tokens left to make; the others do not change.

    Args:
        state: the slots' states.
        logits: float [slots, vocabulary], after the newest token.
        sampler: used in place of `state.sampler`, with unused features turned off.
        seen: the tokens of prompt and answer so far.
        decoding: of the model.
        masks: of the tokens that are allowed; None: all are.

    Returns:
        The states, the seen tokens with one more, and the output: leading axis [slots].
    """
    running, finite = state.left > 0, is_finite(logits)
    position = state.position + running
    ending = Ending(decoding.end_tokens, state.position + 1 - state.answer_from)
    token = jnp.where(running & finite, sample(logits, sampler, position, seen, masks, ending), state.token)
    output = DecodeOutput(
        tokens=jnp.where(running, jnp.where(finite, token, NOT_A_NUMBER), NOTHING),
        logprobs=logprobs_of(sampler.logprobs, logits, token, MAX_LOGPROBS),
    )
    state = state._replace(
        token=token,
        position=position,
        left=jnp.where(running & finite & ~decoding.is_end(token), state.left - 1, 0),
        history=state.history.at[jnp.arange(len(token)), position].set(token, mode="drop"),
    )
    return state, seen.add(token, running), output


def decode(
    decoding: Decoding,
    forward: Forward,
    kv: KVCache,
    state: DecodeState,
    steps: jax.Array,
    masks: TokenMasks[jax.Array],
) -> tuple[KVCache, DecodeState, DecodeOutput]:
    """Make up to `steps` tokens in each slot; a slot with no tokens left to make does not change.

    Args:
        decoding, forward: of the model.
        kv: the slots' caches, with slot axis.
        state: the slots' states.
        steps: int32 scalar, at most `decoding.steps`.
        masks: of the tokens that each slot may make; where one is used, `steps` must be 1.

    Returns:
        The cache, the states, and the output, [decoding.steps, slots].
    """
    sampler = unpacked(state.sampler).only(state.left > 0)

    def goes_on(carry: Any) -> jax.Array:
        done, _, state, *_ = carry
        running: jax.Array = (done < steps) & jnp.any(state.left > 0)
        return running

    def step(carry: Any) -> Any:
        done, kv, state, seen, output = carry
        logits, kv = forward(state.token[:, None], kv, state.position, (state.left > 0).astype(jnp.int32))
        state, seen, new = advance(state, logits, sampler, seen, decoding, masks)
        output = jax.tree.map(lambda all_steps, leaf: all_steps.at[done].set(leaf), output, new)
        return done + 1, kv, state, seen, output

    penalizes, upto = jnp.any(sampler.penalties.used), state.position + 1
    seen = occurrences(penalizes, state.history, state.answer_from, upto, decoding.vocabulary)
    output = decoding.empty_output(decoding.steps, state.token.shape[0])
    _, kv, state, _, output = jax.lax.while_loop(goes_on, step, (jnp.int32(0), kv, state, seen, output))
    return kv, state, output


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


def speculate(
    decoding: Decoding,
    forward: Forward,
    kv: KVCache,
    state: DecodeState,
    rounds: jax.Array,
    tokens: jax.Array,
) -> tuple[KVCache, DecodeState, DecodeOutput]:
    """Make tokens in one slot, in at most `rounds` rounds: one token and the accepted part of a draft in each.

    A round without a draft is a plain step of one token. Positions that a rejected draft has written are written again
    before any query may attend to them. Rings keep every position of their window because draft < the prefill chunk
    (kv_cache.py).

    Args:
        decoding, forward: of the model. A draft ends before a picture's tokens, whose ids are no token's.
        kv: the slot's cache, without slot axis.
        state: the slot's state, with a slot axis of one.
        rounds: int32 scalar.
        tokens: int32 scalar, at most `decoding.steps`; no position beyond those of so many tokens is written.

    Returns:
        The cache, the state, and the output, [decoding.steps, 1].
    """
    sampler = unpacked(state.sampler).only(state.left > 0)
    draft, vocabulary = decoding.draft, decoding.vocabulary

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
        if decoding.sees:
            offered = jnp.minimum(offered, jnp.argmax(jnp.append(drafted >= vocabulary, True)))
        arguments = (jnp.concatenate([state.token, drafted]), state.position[0], 1 + offered)
        kv, logits = once(draft + 1, offered > 0, kv, logits, *arguments)
        kv, logits = once(1, offered == 0, kv, logits, *arguments)

        def accept(carry: Any) -> Any:
            """Sample the next token; the logits after it are valid if it equals the drafted one."""
            count, _, state, seen, output = carry
            state, seen, new = advance(state, logits[count][None], sampler, seen, decoding)
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
    output = decoding.empty_output(decoding.steps, 1)
    carry = (jnp.int32(0), kv, jnp.zeros((draft + 1, vocabulary)), state, seen, none, output)
    _, kv, _, state, _, drafts, output = jax.lax.while_loop(goes_on, round_, carry)
    return kv, state, output._replace(drafts=drafts)
