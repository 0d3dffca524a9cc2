"""A causal language model as compiled programs over slots: prefill, decode and speculate, each in buckets.

Handles token ids and device arrays only. Does not schedule (scheduler.py) and does not handle text (`chat/text/`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import Mesh
from transformers import PreTrainedModel

from hfjax_app.chat.model.buckets import length_buckets, prefill_buckets, slot_buckets, smallest_covering
from hfjax_app.chat.model.decode_state import DecodeOutput, DecodeState
from hfjax_app.chat.model.decoder import Decoder
from hfjax_app.chat.model.kv_cache import CacheShape, KVCache, allocate, cache_shape, rollback
from hfjax_app.chat.model.slot_functions import SlotFunctions
from hfjax_app.chat.sampling.params import SamplingParams
from hfjax_app.chat.sampling.sampler import packed, sampler_state
from hfjax_app.errors import RequestRejected
from hfjax_app.runtime.checkpoints.safetensors_reader import on_one_device
from hfjax_app.runtime.held_weights import held, shapes
from hfjax_app.runtime.mesh import TensorParallel, replicated
from hfjax_app.runtime.module import Shapes, Weights
from hfjax_app.runtime.programs import Program, Programs
from hfjax_app.runtime.transforms import chat_transforms, head_packing

# Tokens that a speculative round drafts, see speculative_loop.py.
DRAFT_TOKENS = 7


class ModelRunner:
    """Holds the weights, the cache and the programs of one model.

    Args:
        model: any AutoModelForCausalLM; it is read, never changed. The runner holds its weights from the start; of a
            model on the meta device it holds their shapes, until `load`.
        mesh: the devices that share the weights; None: the default device.
        quantize: one of QUANTIZATIONS in `runtime/transforms.py`, such as "int8", or "none".
        keep_bf16: whether weights that are bfloat16 in the files may stay bfloat16 where a CPU computes in float32.
        saved_dtype: dtype of the weights in the files, for shapes; None: the model's.
        slots: conversations that decode together.
        context: tokens a slot holds, prompt and answer.
        end_tokens: ids that end an answer.
        prefill_chunk: prompt tokens a prefill call takes, or four times as many, see `prefill_buckets`.
        decode_chunk: tokens a decode call makes for each slot, at most.
        buckets: numbers of slots that a decode program is compiled for, besides all; None: 1, 2, 4, ...
        speculation: whether programs that draft may decode a request that is alone.
        lanes: row width that narrow heads share, see `runtime/head_packing.py`; None: chosen by the devices.

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
        self._replicated = None if mesh is None else replicated(mesh)
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
        self.weights: Weights | Shapes
        if next(model.parameters()).is_meta:
            self.weights = shapes(model, self.transforms, placement=self.placement, saved_dtype=saved_dtype)
        else:
            self.load(held(model, self.transforms, placement=self.placement))
        self._length_buckets, self.slot_buckets = length_buckets(context), slot_buckets(slots, buckets)
        self._prefill: dict[tuple[int, int], Program] = {}
        self._copy: dict[int, Program] = {}
        self._decode: dict[tuple[int, int], Program] = {}
        self._speculate: dict[int, Program] = {}
        # A ring can roll back fewer tokens than a prefill chunk has, a state none. Only one slot's program drafts.
        possible = speculation and 1 in self.slot_buckets and not self.decoder.is_recurrent
        self.draft = min(DRAFT_TOKENS, self.prefill_chunks[0] - 1) if possible else 0  # tokens; 0: never drafts
        self.functions = SlotFunctions(
            decoder=self.decoder,
            slots=slots,
            context=context,
            vocabulary=self.vocabulary,
            end_tokens=end_tokens,
            steps=decode_chunk,
            draft=self.draft,
            mesh=mesh,
        )

    def load(self, weights: Weights) -> None:
        """Hold these weights from now on; they must be read with this runner's `transforms` and `placement`."""
        self.weights = weights

    def compile(self, programs: Programs, *others: Callable[[Programs], None]) -> None:
        """Compile the programs of every bucket and run each once, to the end; afterwards the runner never compiles.

        Args:
            programs: where to compile.
            others: functions that compile more programs along with these.
        """
        self.reset()
        with programs.together():
            self._compile(programs, self._cache, self._state)
            for other in others:
                other(programs)
        self.clear(0)
        one = packed(sampler_state(SamplingParams(temperature=0.0), 0))
        for length in self._length_buckets:
            if self._copy:
                self.copy(0, 0, length, length)
            for size in self.prefill_chunks:
                self.prefill(0, np.zeros(size, np.int32), length - 1, 1, 0, one)
            for count in self.slot_buckets:
                self.decode(range(count), length, 1)
            if self.draft:
                self.speculate(0, length, 1, 1)
        # Otherwise the first request would wait for all of these calls.
        jax.block_until_ready((self._cache, self._state))

    def plan(self, programs: Programs) -> None:
        """Compile the programs of every bucket from shapes alone, for devices that need not be here."""
        with programs.together():
            self._compile(programs, self.cache_shape, self._free_slots())

    def _compile(self, programs: Programs, cache: KVCache | CacheShape, state: DecodeState) -> None:
        one = packed(sampler_state(SamplingParams(temperature=0.0), 0))
        held = (cache, state)
        # Results keep the shardings of their donated arguments; tokens are replicated.
        kept = (jax.tree.map(lambda leaf: leaf.sharding, self.cache_shape), self._replicated)

        def compiled(name: str, function: Callable[..., Any], *arguments: Any) -> Program:
            shardings = (*kept, self._replicated)
            return programs.compile(name, function, self.weights, *held, *arguments, donate=(1, 2), shardings=shardings)

        for length in self._length_buckets:
            for size in self.prefill_chunks:
                function = partial(self.functions.prefill_chunk, length)
                request = (np.int32(0), np.zeros(size, np.int32), np.int32(0), np.int32(1), np.int32(0), one)
                self._prefill[size, length] = compiled(f"chat_prefill_{size}x{length}", function, *request)
        for length in self._length_buckets:
            for count in self.slot_buckets:
                function = partial(self.functions.decode_chunk, length)
                which = (np.zeros(count, np.int32), np.zeros(count, bool), np.int32(0))
                self._decode[count, length] = compiled(f"chat_decode_{count}x{length}", function, *which)
        for length in self._length_buckets if self.draft else ():
            function = partial(self.functions.speculate_chunk, length)
            limits = (np.int32(0), np.int32(0), np.int32(0))
            self._speculate[length] = compiled(f"chat_speculate_{length}", function, *limits)
        places = (np.int32(0),) * 4
        for length in self._length_buckets if self.slots > 1 else ():
            copy, name = partial(self.functions.copy_slot, length), f"chat_copy_{length}"
            self._copy[length] = programs.compile(name, copy, *held, *places, donate=(0, 1), shardings=kept)
        self._clear = programs.compile(
            "chat_clear", self.functions.clear_slot, cache, np.int32(0), donate=(0,), shardings=kept[0]
        )

    @property
    def cache_shape(self) -> CacheShape:
        """Shapes, dtypes and shardings of the cache."""
        return cache_shape(self.decoder.specs, self.slots, self.mesh)

    def _free_slots(self) -> DecodeState:
        """The state of slots that are all free, as numpy arrays."""
        one = packed(sampler_state(SamplingParams(temperature=0.0), 0))
        zeros = np.zeros(self.slots, np.int32)
        fields: dict[str, Any] = {  # numpy arrays, which programs accept as well
            "token": zeros,
            "position": zeros,
            "left": zeros,
            "history": np.zeros((self.slots, self.context), np.int32),
            "answer_from": zeros,
            "sampler": np.stack([one] * self.slots),
        }
        return DecodeState(**fields)

    def reset(self) -> None:
        """Make an empty cache and free slots, also after a failed call has lost them."""
        self._cache: KVCache = []  # freed before it is made again: memory may hold only one
        state: DecodeState = jax.tree.map(lambda leaf: jax.device_put(leaf, self._replicated), self._free_slots())
        self._cache, self._state = allocate(self.cache_shape), state

    @property
    def rollback(self) -> int:
        """How many of the newest tokens of a slot can be rolled back."""
        return rollback(self.decoder.specs)

    @property
    def positions_before_wrap(self) -> int:
        """Up to this position, a slot has lost nothing, and all its tokens can be rolled back."""
        specs = self.decoder.specs
        return 0 if any(spec.is_recurrent for spec in specs) else min(spec.positions for spec in specs)

    @property
    def intact(self) -> bool:
        """Whether the cache exists: a call that fails after it has taken its donated arguments loses it."""
        held = jax.tree.leaves((self._cache, self._state))
        return bool(self._cache) and not any(leaf.is_deleted() for leaf in held)

    def clear(self, slot: int) -> None:
        """Set a slot's cache to zero: a NaN left there would reach the next conversation, because 0 * NaN is NaN."""
        self._cache = self._clear(self._cache, np.int32(slot))

    def copy(self, source: int, target: int, tokens: int, written: int) -> None:
        """Copy the first `tokens` positions of slot `source`, whose positions below `written` may have been written."""
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
            slot: its index.
            tokens: int32 [one of prefill_chunks]; after the first `valid` tokens, padding.
            position: of tokens[0] in the conversation.
            valid: how many tokens are real, at least 1.
            max_tokens: tokens that the slot will make; 0: this is not the prompt's last chunk.
            sampler: the request's sampling parameters, uint32 [words].

        Returns:
            One step of one column: with the prompt's last chunk, the slot's first token; with any chunk whose logits
            are not numbers, NOT_A_NUMBER.
        """
        program = self._prefill[tokens.shape[0], self.bucket(position + valid)]
        scalars = (np.int32(position), np.int32(valid), np.int32(max_tokens))
        output: DecodeOutput
        self._cache, self._state, output = program(
            self.weights, self._cache, self._state, np.int32(slot), tokens, *scalars, sampler
        )
        return output

    def decode(self, slots: Sequence[int], length: int, steps: int) -> tuple[DecodeOutput, Sequence[int]]:
        """Make up to `steps` tokens in each of these slots; fewer if all of them finish earlier.

        Args:
            slots: their indices, all different; the other slots do not change.
            length: of the cache, at least the position after the last token that any of them makes.
            steps: 1 ... decode_chunk.

        Returns:
            decode_chunk steps, of which those not run are empty; and the column of each of `slots`.
        """
        count = self.width(len(slots))
        if count == self.slots:
            which, columns = np.arange(count, dtype=np.int32), slots
            active = np.isin(which, slots)
        else:
            spare = (slot for slot in range(self.slots) if slot not in slots)
            which = np.array([*slots, *islice(spare, count - len(slots))], np.int32)
            active, columns = np.arange(count) < len(slots), range(len(slots))
        program = self._decode[count, self.bucket(length)]
        arguments = (self._cache, self._state, which, active, np.int32(steps))
        self._cache, self._state, output = program(self.weights, *arguments)
        return output, columns

    def speculate(self, slot: int, length: int, rounds: int, tokens: int) -> tuple[DecodeOutput, Sequence[int]]:
        """Make tokens in one slot, with drafts: each round makes one token and the accepted part of its draft.

        Args:
            slot: its index.
            length: of the cache, at least the position after the last of `tokens` tokens.
            rounds: forwards at most.
            tokens: tokens at most, 1 ... decode_chunk.

        Returns:
            decode_chunk steps with the counts of the drafts; and the column of the slot, the only one.
        """
        program = self._speculate[self.bucket(length)]
        limits = (np.int32(slot), np.int32(rounds), np.int32(tokens))
        self._cache, self._state, output = program(self.weights, self._cache, self._state, *limits)
        return output, range(1)

    def bucket(self, length: int) -> int:
        """The cache length of the programs that run for this length."""
        return smallest_covering(self._length_buckets, length)

    def width(self, slots: int) -> int:
        """The number of slots of the program that decodes so many."""
        return smallest_covering(self.slot_buckets, slots)
