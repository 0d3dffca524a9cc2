"""What the programs over slots compute, as pure functions: prefill, decode, speculate, copy, clear."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from hfjax_app.chat.model.decode_loops import (
    NOT_A_NUMBER,
    NOTHING,
    DecodeOutput,
    DecodeState,
    Decoding,
    advance,
    decode,
    is_finite,
    speculate,
)
from hfjax_app.chat.model.decoder import Decoder, ShownPicture
from hfjax_app.chat.model.kv_cache import KVCache, Written, prefix_of, put, put_states, states_of, take
from hfjax_app.chat.sampling.logprobs import logprobs_of
from hfjax_app.chat.sampling.params import MAX_LOGPROBS
from hfjax_app.chat.sampling.sampler import TokenMasks, occurrences, unpacked
from hfjax_app.runtime.mesh import replicated, split
from hfjax_app.runtime.module import Weights


class PromptChunk(NamedTuple):
    """A chunk of a prompt, and what its slot gets with the last one."""

    slot: jax.Array  # int32 scalar, its index
    tokens: jax.Array  # int32 [chunk]; after the first `valid` tokens, padding
    position: jax.Array  # int32 scalar, of the first token in the conversation
    valid: jax.Array  # int32 scalar, how many tokens are real, at least 1
    max_tokens: jax.Array  # int32 scalar, tokens that the slot will make; 0: this is not the prompt's last chunk
    sampler: jax.Array  # uint32 [words], the request's sampling parameters
    shift: jax.Array | None  # int32 scalar, as in `Decoder.forward`

    @classmethod
    def of(
        cls,
        slot: int,
        tokens: np.ndarray,
        position: int,
        valid: int,
        max_tokens: int,
        sampler: np.ndarray,
        shift: int | None = None,
    ) -> "PromptChunk":
        """As numpy arrays, which programs accept as well."""
        fields: list[Any] = [np.int32(slot), tokens, np.int32(position), np.int32(valid), np.int32(max_tokens), sampler]
        fields += [None if shift is None else np.int32(shift)]
        return cls(*fields)


@dataclass(frozen=True, kw_only=True, eq=False)
class SlotFunctions:
    """The functions of one model, one number of slots and one context. Another value of any field is another program.

    Args:
        decoder: the model.
        decoding: how it makes tokens.
        slots: of the cache.
        context: tokens a slot holds.
        mesh: the devices that share the weights; None: the default device.
    """

    decoder: Decoder
    decoding: Decoding
    slots: int
    context: int
    mesh: Mesh | None

    def prefill_chunk(
        self,
        length: int,
        weights: Weights,
        cache: KVCache,
        state: DecodeState,
        chunk: PromptChunk,
        mask: TokenMasks[jax.Array],
    ) -> tuple[KVCache, DecodeState, DecodeOutput]:
        """Write a chunk of a prompt into a slot; with the last chunk, make the answer's first token.

        Args:
            length: of the cache that the chunk reads.
            weights: of the decoder.
            cache, state: of all slots.
            chunk: of the prompt.
            mask: of the answer's first token, without leading axis.

        Returns:
            The cache, the states, and one step of one column.
        """
        states, place = states_of(cache, chunk.slot), (chunk.slot, length)
        logits, new = self.decoder.forward(
            weights, chunk.tokens, states, chunk.position, chunk.valid, place=place, shift=chunk.shift
        )
        return self._began(put_states(cache, new, chunk.slot), state, chunk, self._gathered(logits), mask)

    def score_chunk(
        self,
        weights: Weights,
        cache: KVCache,
        state: DecodeState,
        chunk: PromptChunk,
        mask: TokenMasks[jax.Array],
        targets: jax.Array,
    ) -> tuple[KVCache, DecodeState, DecodeOutput]:
        """As `prefill_chunk` of the whole context, with log-probabilities of the prompt.

        Args:
            weights, cache, state, chunk, mask: as there.
            targets: int32 [chunk], the token after each of the chunk's tokens.
        """
        states, place = states_of(cache, chunk.slot), (chunk.slot, self.context)
        every = jnp.arange(chunk.tokens.shape[0])
        logits, new = self.decoder.forward(
            weights, chunk.tokens, states, chunk.position, chunk.valid, every, place, chunk.shift
        )
        logits, cache = self._gathered(logits), put_states(cache, new, chunk.slot)
        scores = logprobs_of(jnp.ones(1, bool), logits, targets, MAX_LOGPROBS)
        cache, state, output = self._began(cache, state, chunk, logits[chunk.valid - 1], mask)
        return cache, state, output._replace(prompt=scores)

    def _began(
        self,
        cache: KVCache,
        state: DecodeState,
        chunk: PromptChunk,
        logits: jax.Array,
        mask: TokenMasks[jax.Array],
    ) -> tuple[KVCache, DecodeState, DecodeOutput]:
        """The slot after a chunk, whose cache is written; logits [vocabulary] are those after it."""
        slot, tokens, position, valid, max_tokens, sampler, shift = chunk
        index = jnp.arange(tokens.shape[0])
        at = jnp.where(index < valid, position + index, self.context)
        history = state.history.at[slot, at].set(tokens, mode="drop")
        end = (position + valid)[None]
        slot_state = DecodeState(
            token=tokens[valid - 1][None],
            position=end - 1,
            left=max_tokens[None],
            history=history[slot][None],
            answer_from=end,
            sampler=sampler[None],
            shift=None if shift is None else shift[None],
        )
        asked = unpacked(slot_state.sampler).only(slot_state.left > 0)
        seen = occurrences(asked.penalties.used[0], slot_state.history, end, end, self.decoding.vocabulary)
        masks = jax.tree.map(lambda leaf: leaf[None], mask)
        slot_state, _, output = advance(slot_state, logits[None], asked, seen, self.decoding, masks)
        # Reported before the last chunk too: a request cancelled now must not leave NaN in the slot.
        output = output._replace(tokens=jnp.where(is_finite(logits[None]), output.tokens, NOT_A_NUMBER))
        state = state._replace(history=history)
        state = jax.tree.map(lambda leaf, new: leaf.at[slot[None]].set(new), state, slot_state)
        return cache, state, jax.tree.map(lambda leaf: leaf[None], output)

    def write_picture(
        self,
        length: int,
        weights: Weights,
        cache: KVCache,
        state: DecodeState,
        slot: jax.Array,
        picture: ShownPicture,
        position: jax.Array,
    ) -> tuple[KVCache, DecodeState, DecodeOutput]:
        """Write one whole picture into a slot; more of the prompt follows it.

        Args:
            length: of the cache that it reads.
            weights: of the decoder.
            cache, state: of all slots.
            slot, position: int32 scalars, as `ModelRunner.write_picture` takes them.
            picture: with its embeddings.

        Returns:
            The cache, the states, and one step of one column, which has no token.
        """
        count = picture.tokens.shape[0]
        logits, new = self.decoder.forward(
            weights, picture, states_of(cache, slot), position, jnp.int32(count), place=(slot, length)
        )
        history = state.history.at[slot, position + jnp.arange(count)].set(self.decoding.vocabulary, mode="drop")
        output = self.decoding.empty_output(1, 1)
        found = jnp.where(is_finite(self._gathered(logits)), NOTHING, NOT_A_NUMBER)
        output = output._replace(tokens=jnp.full((1, 1), found, jnp.int32))
        return put_states(cache, new, slot), state._replace(history=history), output

    def decode_chunk(
        self,
        length: int,
        weights: Weights,
        cache: KVCache,
        state: DecodeState,
        slots: jax.Array,
        active: jax.Array,
        steps: jax.Array,
        masks: TokenMasks[jax.Array],
    ) -> tuple[KVCache, DecodeState, DecodeOutput]:
        """Make up to `steps` tokens in each of some slots.

        Args:
            length: of the cache that the steps read.
            weights: of the decoder.
            cache, state: of all slots.
            slots: int32 [n], all different.
            active: bool [n]; the other slots only fill the program's width.
            steps: int32 scalar; 1 where a mask is used, because it holds for the next token only.
            masks: of these slots, in their order.

        Returns:
            The cache, the states, and `decoding.steps` steps of n columns.
        """
        count = slots.shape[0]
        all_slots = count == self.slots  # then `slots` are all of them, in order
        in_place = all_slots and length == self.context
        kv = cache if in_place else take(cache, length, slots)
        slot_states = state if all_slots else jax.tree.map(lambda leaf: leaf[slots], state)
        left = slot_states.left
        slot_states = slot_states._replace(left=jnp.where(active, left, 0))
        written = Written(slot_states.position, self.decoding.steps, self.context)
        shift = slot_states.shift

        def forward(tokens: jax.Array, kv: KVCache, position: jax.Array, valid: jax.Array) -> tuple[jax.Array, KVCache]:
            def one(tokens: Any, kv: Any, position: Any, valid: Any, shift: Any) -> Any:
                return self.decoder.forward(weights, tokens, kv, position, valid, shift=shift)

            logits, kv = jax.vmap(one)(tokens, kv, position, valid, shift)
            return self._gathered(logits), kv

        kv, slot_states, output = decode(self.decoding, forward, kv, slot_states, steps, masks)
        # An inactive slot may have tokens left to make, after a call that drafts.
        slot_states = slot_states._replace(left=jnp.where(active, slot_states.left, left))
        state = slot_states if all_slots else state.updated(slots, slot_states)
        return kv if in_place else put(cache, kv, slots, written), state, output

    def speculate_chunk(
        self,
        length: int,
        weights: Weights,
        cache: KVCache,
        state: DecodeState,
        slot: jax.Array,
        rounds: jax.Array,
        tokens: jax.Array,
    ) -> tuple[KVCache, DecodeState, DecodeOutput]:
        """Make up to `tokens` tokens in one slot by at most `rounds` forwards that verify drafts.

        Args:
            length: of the cache that the rounds read.
            weights: of the decoder.
            cache, state: of all slots.
            slot, rounds, tokens: int32 scalars.

        Returns:
            The cache, the states, and `decoding.steps` steps of one column.
        """
        in_place = self.slots == 1 and length == self.context
        kv = jax.tree.map(lambda leaf: leaf[0], cache if in_place else take(cache, length, slot[None]))

        def forward(tokens: jax.Array, kv: KVCache, position: jax.Array, valid: jax.Array) -> tuple[jax.Array, KVCache]:
            keep = jnp.arange(tokens.shape[0])
            logits, kv = self.decoder.forward(weights, tokens, kv, position, valid, keep, shift=shift)
            return self._gathered(logits), kv

        slot_state = state if self.slots == 1 else jax.tree.map(lambda leaf: leaf[slot[None]], state)
        shift = None if slot_state.shift is None else slot_state.shift[0]
        written = Written(slot_state.position, self.decoding.steps, self.context)
        kv, slot_state, output = speculate(self.decoding, forward, kv, slot_state, rounds, tokens)
        kv = jax.tree.map(lambda leaf: leaf[None], kv)
        state = slot_state if self.slots == 1 else state.updated(slot[None], slot_state)
        return kv if in_place else put(cache, kv, slot[None], written), state, output

    def copy_slot(
        self,
        length: int,
        cache: KVCache,
        state: DecodeState,
        source: jax.Array,
        target: jax.Array,
        tokens: jax.Array,
        written: jax.Array,
    ) -> tuple[KVCache, DecodeState]:
        """Copy the first `tokens` positions of one slot to another (int32 scalars), of which those below `written` may
        have been written."""
        history = state.history.at[target].set(state.history[source])
        part = prefix_of(self.decoder.specs, take(cache, length, source[None]), tokens, written)
        return put(cache, part, target[None]), state._replace(history=history)

    def clear_slot(self, cache: KVCache, slot: jax.Array) -> KVCache:
        """Set a slot (int32 scalar) to zero."""
        cleared: KVCache = jax.tree.map(lambda leaf: leaf.at[slot].set(0), cache)
        return cleared

    def _gathered(self, logits: jax.Array) -> jax.Array:
        """Logits on every device, gathered once: sampling reads them many times.

        The first constraint makes each device compute its part of the vocabulary. Without it, the partitioner may
        gather the output layer's weights instead, at every step.
        """
        if self.mesh is None:
            return logits
        parts = jax.lax.with_sharding_constraint(logits, split(self.mesh, logits.shape, logits.ndim - 1))
        gathered: jax.Array = jax.lax.with_sharding_constraint(parts, replicated(self.mesh))
        return gathered
