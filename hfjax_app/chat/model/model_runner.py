"""A causal language model as compiled programs over slots: prefill, decode and speculate, each in buckets.

Handles token ids and device arrays only. Does not schedule (scheduler.py) and does not handle text (`chat/text/`).
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import Mesh
from transformers import PreTrainedModel

from hfjax_app.chat.model.bucket_choice import pieces
from hfjax_app.chat.model.buckets import prefill_buckets, smallest_covering
from hfjax_app.chat.model.decode_state import DecodeOutput, DecodeState
from hfjax_app.chat.model.decoder import Decoder
from hfjax_app.chat.model.kv_cache import CacheShape, KVCache, allocate, cache_shape, rollback
from hfjax_app.chat.model.rotary import positions_of
from hfjax_app.chat.model.slot_functions import SlotFunctions
from hfjax_app.chat.model.slot_memory import held_bytes, slot_memory
from hfjax_app.chat.model.slot_programs import SlotPrograms, SlotProgramSpecs, greedy
from hfjax_app.chat.model.traced_facts import TracedFacts
from hfjax_app.chat.sampling.token_mask import TokenMasks, no_masks
from hfjax_app.chat.vision.picture import Picture
from hfjax_app.chat.vision.vision_tower import VisionTower
from hfjax_app.errors import RequestRejected
from hfjax_app.runtime.checkpoints.safetensors_reader import on_one_device
from hfjax_app.runtime.held_weights import held, shapes
from hfjax_app.runtime.mesh import TensorParallel, platform_of, replicated
from hfjax_app.runtime.module import Shapes, Weights
from hfjax_app.runtime.program import Program
from hfjax_app.runtime.seams.torchax import array_of
from hfjax_app.runtime.transforms import chat_transforms, head_packing, is_accelerated
from hfjax_app.runtime.warm_up import ProgramSpec

# Tokens that a speculative round drafts, see speculative_loop.py.
DRAFT_TOKENS = 7
PREFILL_CHUNK = 64  # prompt tokens of a call on a CPU


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
        prefill_chunk: prompt tokens a prefill call takes, or four times as many, see `prefill_buckets`; None: 64, and
            the sizes of `bucket_choice.pieces` on accelerators.
        decode_chunk: tokens a decode call makes for each slot, at most.
        buckets: numbers of slots that a decode program is compiled for, besides all; None: 1, 2, 4, ..., and on
            accelerators those that save time.
        speculation: whether programs that draft may decode a request that is alone.
        lanes: row width that narrow heads share, see `runtime/head_packing.py`; None: chosen by the devices.
        accelerated: whether buckets are those of an accelerator, see `bucket_choice.py`; None: chosen by the devices.
        vision: what makes embeddings of pictures; None: the model reads text only.
        traced: as for Decoder.

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
        prefill_chunk: int | None = None,
        decode_chunk: int = 16,
        buckets: Sequence[int] | None = None,
        speculation: bool = True,
        lanes: int | None = None,
        accelerated: bool | None = None,
        vision: VisionTower | None = None,
        traced: TracedFacts | None = None,
    ):
        config = model.config.get_text_config(decoder=True)
        positions = positions_of(config)
        if positions is not None and positions < context:
            raise RequestRejected(f"context = {context}: this model has {positions} positions")
        self.slots, self.context, self.vocabulary = slots, context, config.vocab_size
        self._dtype = model.dtype
        self.accelerated = is_accelerated(mesh) if accelerated is None else accelerated
        if prefill_chunk is None and self.accelerated:
            self.chunk_sizes = pieces(context)
        else:
            self.chunk_sizes = prefill_buckets(min(prefill_chunk or PREFILL_CHUNK, context), context)
        self.vision = vision
        self.most_written = max(self.chunk_sizes[-1], 0 if vision is None else vision.tokens)  # tokens of a call
        self.decode_chunk, self.wanted = decode_chunk, buckets
        self.end_tokens = end_tokens
        self.mesh = mesh
        self.replicated = None if mesh is None else replicated(mesh)
        self.placement = on_one_device if mesh is None else TensorParallel(mesh, model)
        self.transforms = chat_transforms(model, mesh, quantize=quantize, keep_bf16=keep_bf16)
        self.decoder = Decoder(
            type(model),
            model.config,
            model.dtype,
            context=context,
            chunk=self.most_written,
            transforms=self.transforms,
            packing=head_packing(mesh, lanes),
            sees_both_ways=vision is not None and vision.family.both_ways,
            traced=traced,
        )
        self.weights: Weights | Shapes
        if next(model.parameters()).is_meta:
            self.weights = shapes(model, self.transforms, placement=self.placement, saved_dtype=saved_dtype)
        else:
            self.load(held(model, self.transforms, placement=self.placement))
        read = sum(map(held_bytes, self.weights.values())) if self.accelerated else None
        memory = slot_memory(self.decoder.specs, self.cache_shape, slots, self.most_written, read)
        self.buckets = memory.buckets(slots, context, buckets)
        self.programs = SlotPrograms()
        # Runs a function with the index of a free slot while no call is dispatched.
        self.between_calls: Callable[[Callable[[int], None]], None] = lambda run: run(0)
        # A ring can roll back fewer tokens than a prefill chunk has, a state none. Only one slot's program drafts.
        possible = speculation and (1 in self.buckets.counts or buckets is None) and not self.decoder.is_recurrent
        self.draft = min(DRAFT_TOKENS, self.chunk_sizes[0] - 1) if possible else 0  # tokens; 0: never drafts
        self.functions = SlotFunctions(
            decoder=self.decoder,
            slots=slots,
            context=context,
            vocabulary=self.vocabulary,
            end_tokens=end_tokens,
            steps=decode_chunk,
            draft=self.draft,
            sees=vision is not None,
            mesh=mesh,
        )

    def load(self, weights: Weights) -> None:
        """Hold these weights from now on; they must be read with this runner's `transforms` and `placement`."""
        chosen = {
            name: jax.device_put(array_of(tensor), self.placement(name, tuple(tensor.shape)))
            for name, tensor in self.decoder.frequencies.items()
        }
        self.weights = weights | chosen

    def specs(self, *others: ProgramSpec) -> list[ProgramSpec]:
        """The programs of every bucket, and others on these weights; see `SlotProgramSpecs.all`."""
        return SlotProgramSpecs(self).all(*others)

    @property
    def arithmetic(self) -> torch.dtype:
        """The dtype of products: a TPU multiplies float32 in parts that are bfloat16."""
        return torch.bfloat16 if platform_of(self.mesh) == "tpu" else self._dtype

    @property
    def cache_shape(self) -> CacheShape:
        """Shapes, dtypes and shardings of the cache."""
        return cache_shape(self.decoder.specs, self.slots, self.mesh)

    def free_slots(self) -> DecodeState:
        """The state of slots that are all free, as numpy arrays."""
        zeros = np.zeros(self.slots, np.int32)
        fields: dict[str, Any] = {  # numpy arrays, which programs accept as well
            "token": zeros,
            "position": zeros,
            "left": zeros,
            "history": np.zeros((self.slots, self.context), np.int32),
            "answer_from": zeros,
            "sampler": np.stack([greedy()] * self.slots),
        }
        return DecodeState(**fields)

    def reset(self) -> None:
        """Make an empty cache and free slots, also after a failed call has lost them."""
        self._cache: KVCache = []  # freed before it is made again: memory may hold only one
        state: DecodeState = self._on_devices(self.free_slots())
        # Held on the devices: calls without a constraint send none.
        self._no_masks = {axes: self._on_devices(no_masks(self.vocabulary, *axes)) for axes in self._mask_axes}
        self._cache, self._state = allocate(self.cache_shape), state

    def _on_devices(self, tree: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.device_put(leaf, self.replicated), tree)

    @property
    def _mask_axes(self) -> list[tuple[int, ...]]:
        """The axes of the masks that programs take: none for a prefill."""
        return [(), *((count,) for count in self.buckets.counts)]

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
        assert self.programs.clear is not None, "it is one of the general programs"
        self._cache = self.programs.clear(self._cache, np.int32(slot))

    def copy(self, source: int, target: int, tokens: int, written: int) -> None:
        """Copy the first `tokens` positions of slot `source`, whose positions below `written` may have been written."""
        self.run_copy(self.programs.copy_of(tokens), source, target, tokens, written)

    def run_copy(self, program: Program, source: int, target: int, tokens: int, written: int) -> None:
        """Dispatch `copy` by this program."""
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
        allowed: np.ndarray | None = None,
    ) -> DecodeOutput:
        """Write a chunk of a prompt into a slot; with the last chunk, sample the first token and start the slot.

        Args:
            slot: its index.
            tokens: int32 [one of prefill_chunks]; after the first `valid` tokens, padding.
            position: of tokens[0] in the conversation.
            valid: how many tokens are real, at least 1.
            max_tokens: tokens that the slot will make; 0: this is not the prompt's last chunk.
            sampler: the request's sampling parameters, uint32 [words].
            allowed: the tokens that may be sampled, as bits in uint32 [words], see TokenMasks; None: all.

        Returns:
            One step of one column: with the prompt's last chunk, the slot's first token; with any chunk whose logits
            are not numbers, NOT_A_NUMBER.
        """
        program = self.programs.prefill_of(tokens.shape[0], position + valid)
        scalars = (np.int32(position), np.int32(valid), np.int32(max_tokens))
        mask = self._no_masks[()] if allowed is None else TokenMasks(allowed, np.bool_(True))
        return self.run(program, np.int32(slot), tokens, *scalars, sampler, mask)

    def write_picture(self, slot: int, picture: Picture, position: int) -> DecodeOutput:
        """Write one whole picture of a prompt into a slot, at `position`; more of the prompt follows.

        Returns:
            One step of one column, without a token, or NOT_A_NUMBER as in `prefill`.
        """
        assert self.vision is not None, "requests with pictures are refused without it"
        assert self.programs.picture is not None, "it is one of the general programs"
        embeddings = self.vision(picture.pixels)
        return self.run(self.programs.picture, np.int32(slot), embeddings, np.int32(position))

    def decode(
        self, slots: Sequence[int], length: int, steps: int, allowed: Sequence[np.ndarray] = ()
    ) -> tuple[DecodeOutput, Sequence[int]]:
        """Make up to `steps` tokens in each of these slots; fewer if all of them finish earlier.

        Args:
            slots: their indices, all different; the other slots do not change.
            length: of the cache, at least the position after the last token that any of them makes.
            steps: 1 ... decode_chunk; 1 with `allowed`.
            allowed: the tokens that each of the slots may make, as for `prefill`; empty: all.

        Returns:
            decode_chunk steps, of which those not run are empty; and the column of each of `slots`.
        """
        program, count = self.programs.decode_of(len(slots), length)
        which, active, columns = self.columns(slots, count)
        masks = self._no_masks[count,]
        if allowed:
            masks = no_masks(self.vocabulary, count)
            masks.allowed[columns], masks.used[columns] = allowed, True
        return self.run(program, which, active, np.int32(steps), masks), columns

    def columns(self, slots: Sequence[int], count: int) -> tuple[np.ndarray, np.ndarray, Sequence[int]]:
        """The slots of a decode program of `count`, which of them are active, and the column of each of `slots`."""
        if count == self.slots:
            which, columns = np.arange(count, dtype=np.int32), slots
            return which, np.isin(which, slots), columns
        spare = (slot for slot in range(self.slots) if slot not in slots)
        which = np.array([*slots, *islice(spare, count - len(slots))], np.int32)
        return which, np.arange(count) < len(slots), range(len(slots))

    def run(self, program: Program, *arguments: Any) -> DecodeOutput:
        """Dispatch a call that takes and returns the cache and the state."""
        output: DecodeOutput
        self._cache, self._state, output = program(self.weights, self._cache, self._state, *arguments)
        return output

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
        program = self.programs.speculate_of(length)
        return self.run(program, np.int32(slot), np.int32(rounds), np.int32(tokens)), range(1)

    def wait(self) -> None:
        """Wait until all dispatched calls have ended."""
        jax.block_until_ready((self._cache, self._state))

    @property
    def prefill_chunks(self) -> tuple[int, ...]:
        """Prompt tokens that a prefill call may take, smallest first: those whose program covers the whole context."""
        return tuple(size for size in self.chunk_sizes if (size, self.context) in self.programs.prefill)

    def bucket(self, length: int) -> int:
        """The length bucket of this length. Until its programs are in use, those of a longer one run."""
        return smallest_covering(self.buckets.all_lengths, length)

    def width(self, slots: int) -> int:
        """The slot bucket of so many slots. Until its programs are in use, those of a wider one run."""
        return smallest_covering(self.buckets.counts, slots)
