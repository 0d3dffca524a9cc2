"""A causal language model as compiled programs over slots: prefill_chunk, decode_chunk and speculate, each in buckets.

Handles token ids and device arrays only. Which slot does what is the scheduler's business; text is in `chat/text/`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import Mesh
from transformers import PreTrainedModel

from hfjax_app.chat.model import decode_loop, speculative_loop
from hfjax_app.chat.model.buckets import (
    Written,
    length_buckets,
    prefill_buckets,
    put,
    put_states,
    slot_buckets,
    smallest_covering,
    states_of,
    take,
)
from hfjax_app.chat.model.decode_state import NOT_A_NUMBER, DecodeOutput, DecodeState, advance, is_finite
from hfjax_app.chat.model.decoder import Decoder
from hfjax_app.chat.model.kv_cache import KVCache, allocate, beginning, cache_shape, rollback
from hfjax_app.chat.sampling.params import SamplingParams
from hfjax_app.chat.sampling.penalties import occurrences
from hfjax_app.chat.sampling.sampler import packed, sampler_state, unpacked
from hfjax_app.errors import RequestRejected
from hfjax_app.runtime.checkpoints.safetensors_reader import on_one_device
from hfjax_app.runtime.held_weights import held, shapes
from hfjax_app.runtime.mesh import TensorParallel, replicated, split
from hfjax_app.runtime.module import Weights
from hfjax_app.runtime.programs import Program, Programs
from hfjax_app.runtime.transforms import chat_transforms, head_packing

# Tokens that a speculative round drafts, see speculative_loop.py.
DRAFT_TOKENS = 7


class ModelRunner:
    """Holds the weights, the cache and the programs of one model.

    Args:
        model: any AutoModelForCausalLM; it is read, never changed. Its weights are held from the start if it has any;
            otherwise their shapes are, until `load`.
        mesh: the devices that hold the weights together; None: the default device.
        quantize: "int8" for int8 weights in the linear layers, or "none".
        keep_bf16: whether weights that are bfloat16 in the files may stay so where a CPU computes in float32.
        saved_dtype: of the weights in the files, for shapes; None: the model's.
        slots: conversations that decode together.
        context: tokens a slot holds, prompt and answer.
        end_tokens: ids that end an answer.
        prefill_chunk: prompt tokens a prefill call takes, or four times as many, see `prefill_buckets`.
        decode_chunk: tokens a decode call makes for each slot, at most.
        buckets: numbers of slots that a decode program is compiled for, besides all; None: 1, 2, 4, ...
        speculation: whether a request that is alone may be decoded by programs that draft.
        lanes: numbers that narrow heads fill side by side, see `runtime/head_packing.py`; None: by the devices.

    Raises:
        RequestRejected: the context is longer than the model's positions.
        ModelUnavailable: the model's architecture is not supported.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        mesh: Mesh | None = None,
        quantize: str = "none",
        keep_bf16: bool = False,
        saved_dtype: torch.dtype | None = None,
        slots: int,
        context: int,
        end_tokens: tuple[int, ...],
        prefill_chunk: int = 64,
        decode_chunk: int = 16,
        buckets: Sequence[int] | None = None,
        speculation: bool = True,
        lanes: int | None = None,
    ):
        config = model.config.get_text_config(decoder=True)
        positions = getattr(config, "max_position_embeddings", None)
        if positions is not None and 0 < positions < context:  # XLNet's config says -1: no limit
            raise RequestRejected(f"context = {context}: this model has {positions} positions")
        self.slots, self.context, self.vocabulary = slots, context, config.vocab_size
        self.prefill_chunks, self.decode_chunk = prefill_buckets(min(prefill_chunk, context), context), decode_chunk
        self.end_tokens = end_tokens
        self.mesh = mesh
        self._everywhere = None if mesh is None else replicated(mesh)
        self.placement = on_one_device if mesh is None else TensorParallel(mesh, model)
        self.transforms = chat_transforms(model, mesh, quantize=quantize, keep_bf16=keep_bf16)
        self.decoder = Decoder(
            type(model),
            model.config,
            model.dtype,
            context=context,
            chunk=self.prefill_chunks[-1],
            transforms=self.transforms,
            packing=head_packing(mesh, lanes),
        )
        if next(model.parameters()).is_meta:
            self.weights = shapes(model, self.transforms, placement=self.placement, saved_dtype=saved_dtype)
        else:
            self.load(held(model, self.transforms, placement=self.placement))
        self._length_buckets, self.slot_buckets = length_buckets(context), slot_buckets(slots, buckets)
        self._prefill: dict[tuple[int, int], Program] = {}
        self._copy: dict[int, Program] = {}
        self._decode: dict[tuple[int, int], Program] = {}
        self._speculate: dict[int, Program] = {}
        # A ring can lose as many rows as a prefill chunk has; a state, none. One request is one slot's program.
        possible = speculation and 1 in self.slot_buckets and not self.decoder.is_recurrent
        self.draft = min(DRAFT_TOKENS, self.prefill_chunks[0] - 1) if possible else 0  # tokens; 0: there are no drafts

    def load(self, weights: Weights) -> None:
        """Hold these weights from now on: read with this runner's `transforms` and `placement`."""
        self.weights = weights

    def compile(self, programs: Programs, *others: Callable[[Programs], None]) -> None:
        """Compile the programs of every bucket and run each once, to the end; afterwards the runner never compiles.

        Args:
            programs: where to compile.
            others: compile more programs, along with these.
        """
        self.reset()
        with programs.together():
            self._compile(programs, self._cache, self._state)
            for other in others:
                other(programs)
        self.clear(0)
        one = packed(sampler_state(SamplingParams(temperature=0.0), 0))
        for rows in self._length_buckets:
            if self._copy:
                self.copy(0, 0, rows, rows)
            for size in self.prefill_chunks:
                self.prefill(0, np.zeros(size, np.int32), rows - 1, 1, 0, one)
            for count in self.slot_buckets:
                self.decode(range(count), rows, 1)
            if self.draft:
                self.speculate(0, rows, 1, 1)
        jax.block_until_ready((self._cache, self._state))  # or the first request would wait for all of these calls

    def plan(self, programs: Programs) -> None:
        """Compile the programs of every bucket from shapes alone, for devices that need not be here."""
        with programs.together():
            self._compile(programs, self.cache_shape, self._free_slots())

    def _compile(self, programs: Programs, cache: KVCache, state: DecodeState) -> None:
        one = packed(sampler_state(SamplingParams(temperature=0.0), 0))
        held = (cache, state)
        # Results keep the places that their donated arguments have; tokens go everywhere.
        kept = (jax.tree.map(lambda leaf: leaf.sharding, self.cache_shape), self._everywhere)
        options = {"donate": (1, 2), "shardings": (*kept, self._everywhere)}
        for rows in self._length_buckets:
            for size in self.prefill_chunks:
                function = partial(self._prefill_chunk, rows)
                request = (np.int32(0), np.zeros(size, np.int32), np.int32(0), np.int32(1), np.int32(0), one)
                name = f"chat_prefill_{size}x{rows}"
                self._prefill[size, rows] = programs.compile(name, function, self.weights, *held, *request, **options)
        for rows in self._length_buckets:
            for count in self.slot_buckets:
                function = partial(self._decode_chunk, rows)
                which = (np.zeros(count, np.int32), np.zeros(count, bool), np.int32(0))
                name = f"chat_decode_{count}x{rows}"
                self._decode[count, rows] = programs.compile(name, function, self.weights, *held, *which, **options)
        for rows in self._length_buckets if self.draft else ():
            function = partial(self._speculate_chunk, rows)
            limits = (np.int32(0), np.int32(0), np.int32(0))
            name = f"chat_speculate_{rows}"
            self._speculate[rows] = programs.compile(name, function, self.weights, *held, *limits, **options)
        places = (np.int32(0),) * 4
        for rows in self._length_buckets if self.slots > 1 else ():
            self._copy[rows] = programs.compile(
                f"chat_copy_{rows}", partial(self._copy_slot, rows), *held, *places, donate=(0, 1), shardings=kept
            )
        self._clear = programs.compile(
            "chat_clear", self._clear_slot, cache, np.int32(0), donate=(0,), shardings=kept[0]
        )

    @property
    def cache_shape(self) -> KVCache:
        """Shapes, dtypes and places of the cache."""
        return cache_shape(self.decoder.specs, self.slots, self.mesh)

    def _whole(self, logits: jax.Array) -> jax.Array:
        """Logits on every device, met once: sampling looks at them many times.

        Each device first makes those of its part of the vocabulary: asked for all of them at once, the partitioner may
        gather the output layer's weights instead, at every step.
        """
        if self.mesh is None:
            return logits
        parts = jax.lax.with_sharding_constraint(logits, split(self.mesh, logits.shape, logits.ndim - 1))
        return jax.lax.with_sharding_constraint(parts, self._everywhere)

    def _free_slots(self) -> DecodeState:
        """The state of slots that are all free; on the host."""
        one = packed(sampler_state(SamplingParams(temperature=0.0), 0))
        zeros = np.zeros(self.slots, np.int32)
        return DecodeState(
            token=zeros,
            position=zeros,
            left=zeros,
            history=np.zeros((self.slots, self.context), np.int32),
            answer_from=zeros,
            sampler=np.stack([one] * self.slots),
        )

    def reset(self) -> None:
        """An empty cache and finished slots, also where a failed call has lost them."""
        self._cache = self._state = None  # first gone, then made again: memory may hold only one
        self._cache = allocate(self.cache_shape)
        self._state = jax.tree.map(lambda leaf: jax.device_put(leaf, self._everywhere), self._free_slots())

    @property
    def rollback(self) -> int:
        """How many of the newest tokens a slot can take back."""
        return rollback(self.decoder.specs)

    @property
    def positions_before_wrap(self) -> int:
        """Up to this position, a slot has lost nothing and can take back everything."""
        specs = self.decoder.specs
        return 0 if any(spec.is_recurrent for spec in specs) else min(spec.rows for spec in specs)

    @property
    def intact(self) -> bool:
        """Whether the cache is there: a call that fails after its donated arguments were taken has lost it."""
        held = jax.tree.leaves((self._cache, self._state))
        return bool(held) and not any(leaf.is_deleted() for leaf in held)

    def clear(self, slot: int) -> None:
        """Zeros in a slot's rows: a NaN left there would reach the next conversation, as 0 * NaN is NaN."""
        self._cache = self._clear(self._cache, np.int32(slot))

    def copy(self, source: int, target: int, tokens: int, written: int) -> None:
        """Give a slot the first `tokens` positions of another one, in which those below `written` may be written."""
        program = self._copy[self.bucket(tokens)]
        places = (np.int32(source), np.int32(target), np.int32(tokens), np.int32(written))
        self._cache, self._state = program(self._cache, self._state, *places)

    def prefill(
        self,
        slot: int,
        tokens: np.ndarray,
        position: int,
        valid: int,
        max_tokens: int,
        sampler: np.ndarray,
    ) -> DecodeOutput:
        """Write a chunk of a prompt into a slot; with the last chunk, sample the first token and start the slot.

        Args:
            slot: which one.
            tokens: int32 [one of prefill_chunks]; after the first `valid` tokens, padding.
            position: of tokens[0] in the conversation.
            valid: how many tokens are real, at least 1.
            max_tokens: how many tokens the slot is to make in all; 0: this is not the prompt's last chunk.
            sampler: the request's sampling parameters, uint32 [words].

        Returns:
            One step of one column: the slot's first token, with the prompt's last chunk; NOT_A_NUMBER with any.
        """
        program = self._prefill[tokens.shape[0], self.bucket(position + valid)]
        scalars = (np.int32(position), np.int32(valid), np.int32(max_tokens))
        self._cache, self._state, first = program(
            self.weights, self._cache, self._state, np.int32(slot), tokens, *scalars, sampler
        )
        return first

    def decode(self, slots: Sequence[int], rows: int, steps: int) -> tuple[DecodeOutput, Sequence[int]]:
        """Make up to `steps` tokens in each of these slots; fewer where all have finished before.

        Args:
            slots: which ones, each once; the others are left as they are.
            rows: at least the position after the last token that any of them makes.
            steps: 1 ... decode_chunk.

        Returns:
            decode_chunk steps, those that were not run empty; and the column of each of `slots`.
        """
        count = self.width(len(slots))
        if count == self.slots:
            which, columns = np.arange(count, dtype=np.int32), slots
            active = np.isin(which, slots)
        else:
            spare = (slot for slot in range(self.slots) if slot not in slots)
            which = np.array([*slots, *islice(spare, count - len(slots))], np.int32)
            active, columns = np.arange(count) < len(slots), range(len(slots))
        program = self._decode[count, self.bucket(rows)]
        self._cache, self._state, made = program(self.weights, self._cache, self._state, which, active, np.int32(steps))
        return made, columns

    def speculate(self, slot: int, rows: int, rounds: int, tokens: int) -> tuple[DecodeOutput, Sequence[int]]:
        """Make tokens in one slot, with drafts: each round makes one token and what is right of its draft.

        Args:
            slot: which one.
            rows: at least the position after the last of `tokens` tokens.
            rounds: at most so many forwards.
            tokens: at most so many, 1 ... decode_chunk.

        Returns:
            decode_chunk steps with what became of the drafts; and the column of the slot, the only one.
        """
        program = self._speculate[self.bucket(rows)]
        limits = (np.int32(slot), np.int32(rounds), np.int32(tokens))
        self._cache, self._state, made = program(self.weights, self._cache, self._state, *limits)
        return made, range(1)

    def bucket(self, rows: int) -> int:
        """The rows of the programs that run for so many."""
        return smallest_covering(self._length_buckets, rows)

    def width(self, slots: int) -> int:
        """The slots of the program that decodes so many."""
        return smallest_covering(self.slot_buckets, slots)

    def _is_end(self, token: jax.Array) -> jax.Array:
        if not self.end_tokens:
            return jnp.zeros_like(token, bool)
        return jnp.any(token[..., None] == jnp.array(self.end_tokens, jnp.int32), axis=-1)

    def _prefill_chunk(
        self,
        rows: int,
        weights: Weights,
        cache: KVCache,
        state: DecodeState,
        slot: jax.Array,
        tokens: jax.Array,
        position: jax.Array,
        valid: jax.Array,
        max_tokens: jax.Array,
        sampler: jax.Array,
    ) -> tuple[KVCache, DecodeState, DecodeOutput]:
        logits, new = self.decoder.forward(weights, tokens, states_of(cache, slot), position, valid, place=(slot, rows))
        logits, cache = self._whole(logits), put_states(cache, new, slot)
        index = jnp.arange(tokens.shape[0])
        at = jnp.where(index < valid, position + index, self.context)
        history = state.history.at[slot, at].set(tokens, mode="drop")
        end = (position + valid)[None]
        own = DecodeState(
            token=tokens[valid - 1][None],
            position=end - 1,
            left=max_tokens[None],
            history=history[slot][None],
            answer_from=end,
            sampler=sampler[None],
        )
        asked = unpacked(own.sampler).only(own.left > 0)
        seen = occurrences(asked.penalties.used[0], own.history, end, end, self.vocabulary)
        own, _, made = advance(own, logits[None], asked, seen, self._is_end)
        # Also before the last chunk: whoever leaves now must not leave NaN behind.
        made = made._replace(tokens=jnp.where(is_finite(logits[None]), made.tokens, NOT_A_NUMBER))
        state = jax.tree.map(lambda leaf, new: leaf.at[slot[None]].set(new), state._replace(history=history), own)
        return cache, state, jax.tree.map(lambda leaf: leaf[None], made)

    def _decode_chunk(
        self,
        rows: int,
        weights: Weights,
        cache: KVCache,
        state: DecodeState,
        slots: jax.Array,
        active: jax.Array,
        steps: jax.Array,
    ) -> tuple[KVCache, DecodeState, DecodeOutput]:
        count = slots.shape[0]
        whole = count == self.slots and rows == self.context
        kv = cache if whole else take(cache, rows, slots)
        every = count == self.slots  # then `slots` is each of them, in order
        own = state if every else jax.tree.map(lambda leaf: leaf[slots], state)
        left, own = own.left, own._replace(left=jnp.where(active, own.left, 0))
        began = own.position

        def forward(tokens: jax.Array, kv: KVCache, position: jax.Array, valid: jax.Array) -> tuple[jax.Array, KVCache]:
            logits, kv = jax.vmap(partial(self.decoder.forward, weights))(tokens, kv, position, valid)
            return self._whole(logits), kv

        sizes = {"most": self.decode_chunk, "vocabulary": self.vocabulary}
        kv, own, made = decode_loop.decode(forward, self._is_end, kv, own, steps, **sizes)
        own = own._replace(left=jnp.where(active, own.left, left))  # a call that drafts may have left it some to make
        state = own if every else state.updated(slots, own)
        return kv if whole else put(cache, kv, slots, Written(began, self.decode_chunk, self.context)), state, made

    def _speculate_chunk(
        self,
        rows: int,
        weights: Weights,
        cache: KVCache,
        state: DecodeState,
        slot: jax.Array,
        rounds: jax.Array,
        tokens: jax.Array,
    ) -> tuple[KVCache, DecodeState, DecodeOutput]:
        whole = self.slots == 1 and rows == self.context
        kv = jax.tree.map(lambda leaf: leaf[0], cache if whole else take(cache, rows, slot[None]))

        def forward(tokens: jax.Array, kv: KVCache, position: jax.Array, valid: jax.Array) -> tuple[jax.Array, KVCache]:
            keep = jnp.arange(tokens.shape[0])
            logits, kv = self.decoder.forward(weights, tokens, kv, position, valid, keep)
            return self._whole(logits), kv

        own = state if self.slots == 1 else jax.tree.map(lambda leaf: leaf[slot[None]], state)
        began = own.position
        sizes = {"most": self.decode_chunk, "draft": self.draft, "vocabulary": self.vocabulary}
        kv, own, made = speculative_loop.decode(forward, self._is_end, kv, own, rounds, tokens, **sizes)
        kv = jax.tree.map(lambda leaf: leaf[None], kv)
        state = own if self.slots == 1 else state.updated(slot[None], own)
        return kv if whole else put(cache, kv, slot[None], Written(began, self.decode_chunk, self.context)), state, made

    def _copy_slot(
        self,
        rows: int,
        cache: KVCache,
        state: DecodeState,
        source: jax.Array,
        target: jax.Array,
        tokens: jax.Array,
        written: jax.Array,
    ) -> tuple[KVCache, DecodeState]:
        history = state.history.at[target].set(state.history[source])
        part = beginning(self.decoder.specs, take(cache, rows, source[None]), tokens, written)
        return put(cache, part, target[None]), state._replace(history=history)

    def _clear_slot(self, cache: KVCache, slot: jax.Array) -> KVCache:
        return jax.tree.map(lambda leaf: leaf.at[slot].set(0), cache)
