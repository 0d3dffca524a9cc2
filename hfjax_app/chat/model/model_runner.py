"""A causal language model as compiled programs over slots: prefill, decode and speculate, each in buckets.

`ModelRunner` holds weights, cache and programs, and dispatches calls on token ids and device arrays, from the engine's
thread. `ProgramSpecs` describes the programs, whose functions are in slot_functions.py, and takes each into use when it
is compiled: the general ones before the first request, others while requests are served.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import Mesh
from transformers import PreTrainedModel

from hfjax_app.chat.model.buckets import pieces, prefill_buckets, slot_memory, smallest_covering
from hfjax_app.chat.model.decode_loops import DecodeOutput, DecodeState, Decoding
from hfjax_app.chat.model.decoder import Architecture, Decoder, ShownPicture, TracedFacts
from hfjax_app.chat.model.kv_cache import CacheShape, KVCache, allocate, cache_shape, rollback
from hfjax_app.chat.model.rotary import positions_of
from hfjax_app.chat.model.slot_functions import PromptChunk, SlotFunctions
from hfjax_app.chat.options import EngineOptions
from hfjax_app.chat.sampling.params import SamplingParams
from hfjax_app.chat.sampling.sampler import TokenMasks, no_masks, packed, sampler_state
from hfjax_app.chat.text.tokenizer import end_tokens
from hfjax_app.chat.vision.picture import Grid, VisionPicture
from hfjax_app.chat.vision.vision_tower import SeenPicture, VisionTower
from hfjax_app.errors import RequestRejected
from hfjax_app.runtime.checkpoints.safetensors_reader import on_one_device
from hfjax_app.runtime.held_weights import device_weights, shapes
from hfjax_app.runtime.memory import held_bytes
from hfjax_app.runtime.mesh import TensorParallel, platform_of, replicated
from hfjax_app.runtime.module import Shapes, Weights
from hfjax_app.runtime.programs import Program
from hfjax_app.runtime.seams.torchax import array_of
from hfjax_app.runtime.transforms import chat_transforms, head_packing, is_accelerated
from hfjax_app.runtime.warm_up import ProgramSpec

# Tokens that a speculative round drafts, see decode_loops.py.
DRAFT_TOKENS = 7
PREFILL_CHUNK = 64  # prompt tokens of a call on a CPU


@dataclass(kw_only=True)
class SlotPrograms:
    """The programs in use. Each method gives the one that does the least for a call that any of them could serve.

    Attributes:
        prefill: by prompt tokens of the call, and cache length.
        decode: by number of slots, and cache length.
        speculate, copy: by cache length.
        clear: of one slot.
        score: that reads a chunk of a prompt whose tokens' log-probabilities are wanted.
        picture: that writes a picture, by its tokens and its embeddings; none for models that read text only.
    """

    prefill: dict[tuple[int, int], Program] = field(default_factory=dict)
    decode: dict[tuple[int, int], Program] = field(default_factory=dict)
    speculate: dict[int, Program] = field(default_factory=dict)
    copy: dict[int, Program] = field(default_factory=dict)
    clear: Program | None = None
    score: Program | None = None
    picture: dict[tuple[int, int], Program] = field(default_factory=dict)

    def prefill_of(self, size: int, length: int) -> Program:
        return _shortest({covered: program for (of, covered), program in self.prefill.items() if of == size}, length)

    def decode_of(self, slots: int, length: int) -> tuple[Program, int]:
        """The program, and its number of slots."""
        covering = [(count, covered) for count, covered in self.decode if count >= slots and covered >= length]
        bucket = min(covering, key=lambda bucket: (bucket[0] * bucket[1], bucket))
        return self.decode[bucket], bucket[0]

    def speculate_of(self, length: int) -> Program:
        return _shortest(self.speculate, length)

    def can_speculate(self, length: int) -> bool:
        return any(covered >= length for covered in self.speculate)

    def copy_of(self, length: int) -> Program:
        return _shortest(self.copy, length)


def _shortest(programs: Mapping[int, Program], length: int) -> Program:
    """The program of the smallest cache length of at least `length`."""
    return programs[min(covered for covered in programs if covered >= length)]


def greedy() -> np.ndarray:
    """The sampler's words, uint32 [words], of a slot that takes the likeliest token."""
    return packed(sampler_state(SamplingParams(temperature=0.0), 0))


class ModelRunner:
    """Holds the weights, the cache and the programs of one model.

    Args:
        model: any AutoModelForCausalLM; it is read, never changed. The runner holds its weights from the start; of a
            model on the meta device it holds their shapes, until `load`.
        options: of the engine.
        mesh: the devices that share the weights; None: the default device.
        saved_dtype: dtype of the weights in the files, for shapes; None: the model's.
        vision: what makes embeddings of pictures; None: the model reads text only.
        traced: as for Decoder.

    Raises:
        RequestRejected: the context is longer than the model's positions.
        ModelUnavailable: the model's architecture is not supported.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        options: EngineOptions,
        *,
        mesh: Mesh | None = None,
        saved_dtype: torch.dtype | None = None,
        vision: VisionTower | None = None,
        traced: TracedFacts | None = None,
    ):
        slots, context = options.slots, options.context
        config = model.config.get_text_config(decoder=True)
        positions = positions_of(config)
        if positions is not None and positions < context:
            raise RequestRejected(f"context = {context}: this model has {positions} positions")
        self.options, self.vision, self.slots, self.context = options, vision, slots, context
        self.vocabulary = config.vocab_size
        self._dtype = model.dtype
        self.accelerated = is_accelerated(mesh) if options.accelerated is None else options.accelerated
        if options.prefill_chunk is None and self.accelerated:
            self.chunk_sizes = pieces(context)
        else:
            self.chunk_sizes = prefill_buckets(min(options.prefill_chunk or PREFILL_CHUNK, context), context)
        self.most_written = max(self.chunk_sizes[-1], 0 if vision is None else vision.most_tokens)  # tokens of a call
        self.decode_chunk = options.decode_chunk
        self.end_tokens = end_tokens(model) if options.end_tokens is None else options.end_tokens
        self.mesh = mesh
        self.replicated = None if mesh is None else replicated(mesh)
        self.placement = on_one_device if mesh is None else TensorParallel(mesh, model)
        self.transforms = chat_transforms(model, mesh, quantize=options.quantize, keep_bf16=options.keep_bf16)
        self.decoder = Decoder(
            Architecture(type(model), model.config, model.dtype),
            context=context,
            chunk=self.most_written,
            transforms=self.transforms,
            packing=head_packing(mesh, options.lanes),
            both_ways=() if vision is None else vision.family.both_ways(config),
            traced=traced,
        )
        self.weights: Weights | Shapes
        if next(model.parameters()).is_meta:
            self.weights = shapes(model, self.transforms, placement=self.placement, saved_dtype=saved_dtype)
        else:
            self.load(device_weights(model, self.transforms, placement=self.placement))
        read = sum(map(held_bytes, self.weights.values())) if self.accelerated else None
        self.memory = slot_memory(self.decoder.specs, self.cache_shape, slots, self.most_written, read)
        self.buckets = self.memory.buckets(slots, context, options.buckets)
        self.programs = SlotPrograms()
        # Runs a function with the index of a free slot while no call is dispatched.
        self.between_calls: Callable[[Callable[[int], None]], None] = lambda run: run(0)
        # A ring can roll back fewer tokens than a prefill chunk has, a state none. Only one slot's program drafts.
        lone = 1 in self.buckets.counts or options.buckets is None
        drafts = options.speculation != "never" and lone and not self.decoder.is_recurrent
        self.draft = min(DRAFT_TOKENS, self.chunk_sizes[0] - 1) if drafts else 0  # tokens; 0: never drafts
        decoding = Decoding(
            vocabulary=self.vocabulary,
            end_tokens=self.end_tokens,
            steps=self.decode_chunk,
            draft=self.draft,
            sees=vision is not None,
        )
        self.functions = SlotFunctions(decoder=self.decoder, decoding=decoding, slots=slots, context=context, mesh=mesh)

    def load(self, weights: Weights) -> None:
        """Hold these weights from now on; they must be read with this runner's `transforms` and `placement`."""
        chosen = {
            name: jax.device_put(array_of(tensor), self.placement(name, tuple(tensor.shape)))
            for name, tensor in self.decoder.frequencies.items()
        }
        self.weights = weights | chosen

    def specs(self, *others: ProgramSpec) -> list[ProgramSpec]:
        """The programs of every bucket, and others on these weights; see `ProgramSpecs.all`."""
        return ProgramSpecs(self).all(*others)

    @property
    def arithmetic(self) -> torch.dtype:
        """The dtype of products: a TPU multiplies float32 in parts that are bfloat16."""
        return torch.bfloat16 if platform_of(self.mesh) == "tpu" else self._dtype

    @property
    def cache_shape(self) -> CacheShape:
        """Shapes, dtypes and shardings of the cache."""
        return cache_shape(self.decoder.specs, self.slots, self.mesh)

    @property
    def shift(self) -> int | None:
        """The shift of a conversation without pictures; None: the model's positions have none."""
        return 0 if self.vision is not None and self.vision.axes else None

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
            "shift": None if self.shift is None else zeros,
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

    def prefill(self, chunk: PromptChunk, allowed: np.ndarray | None = None) -> DecodeOutput:
        """Write a chunk of a prompt into a slot; with the last chunk, sample the first token and start the slot.

        Args:
            chunk: of one of `prefill_chunks` tokens; its shift is None where `shift` is.
            allowed: the tokens that may be sampled, as bits in uint32 [words], see TokenMasks; None: all.

        Returns:
            One step of one column: with the prompt's last chunk, the slot's first token; with any chunk whose logits
            are not numbers, NOT_A_NUMBER.
        """
        program = self.programs.prefill_of(chunk.tokens.shape[0], int(chunk.position) + int(chunk.valid))
        mask = self._no_masks[()] if allowed is None else TokenMasks(allowed, np.bool_(True))
        return self.run(program, chunk, mask)

    @property
    def scored_chunk(self) -> int:
        """Prompt tokens of a call that scores: it has logits of them all at once."""
        return min(self.chunk_sizes[0], PREFILL_CHUNK)

    def score(self, chunk: PromptChunk, targets: np.ndarray, allowed: np.ndarray | None = None) -> DecodeOutput:
        """As `prefill`, with log-probabilities of the prompt.

        Args:
            chunk: of `scored_chunk` tokens.
            targets: int32 [chunk], the token after each of them.
            allowed: as for `prefill`.
        """
        assert self.programs.score is not None, "requests are refused until it has joined"
        mask = self._no_masks[()] if allowed is None else TokenMasks(allowed, np.bool_(True))
        return self.run(self.programs.score, chunk, mask, targets)

    def can_see(self, grid: Grid) -> bool:
        """Whether the programs for pictures of this grid are in use."""
        return (
            self.vision is not None
            and self.vision.is_ready(grid)
            and (grid.count, grid.embeddings) in self.programs.picture
        )

    def write_picture(
        self, slot: int, picture: VisionPicture, seen: SeenPicture, position: int, positions: np.ndarray | None = None
    ) -> DecodeOutput:
        """Write one whole picture of a prompt into a slot, at `position`; more of the prompt follows.

        Args:
            slot: its index.
            picture: of the prompt.
            seen: what the vision tower has made of it.
            position: of its first token in the conversation.
            positions: the model's own of its tokens, int32 [axes, tokens]; None: as in the conversation.

        Returns:
            One step of one column, without a token, or NOT_A_NUMBER as in `prefill`.
        """
        shown = ShownPicture(picture.grid.tokens, seen.embeddings, seen.deep, positions)
        program = self.programs.picture[picture.grid.count, picture.grid.embeddings]
        return self.run(program, np.int32(slot), shown, np.int32(position))

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


class ProgramSpecs:
    """Describes the programs of a runner by shapes alone, so that its devices need not be here.

    Args:
        runner: whose `reset` must be called before a program joins.
    """

    def __init__(self, runner: ModelRunner):
        self._runner = runner
        self._held = (runner.cache_shape, runner.free_slots())
        # Results keep the shardings of their donated arguments.
        self._kept = (jax.tree.map(lambda leaf: leaf.sharding, runner.cache_shape), runner.replicated)

    def all(self, *others: ProgramSpec) -> list[ProgramSpec]:
        """The programs of every bucket, those that are needed most first; the general ones serve every request.

        Args:
            others: more programs on the runner's weights, which go before drafts.
        """
        runner = self._runner
        buckets, whole, sizes = runner.buckets, runner.context, runner.chunk_sizes
        copied = buckets.lengths if runner.slots > 1 else ()
        general = [self.prefill(sizes[0], whole), self.decode(runner.slots, whole), self.clear()]
        general += [self.copy(length) for length in copied[-1:]]
        few = buckets.counts[0]  # of a lone visitor
        later = [] if runner.vision is None else self._pictures(runner.vision)
        later += [self.decode(*bucket) for bucket in buckets.decode if bucket[0] == few]
        # The longest first: a size of prefill calls is used once its program covers the whole context.
        later += [self.prefill(size, length) for size in sizes[::-1] for length in buckets.lengths[::-1]]
        later += [self.decode(*bucket) for bucket in buckets.decode if bucket[0] != few]
        later += [self.copy(length) for length in copied]
        later += [self.score(), *others]
        later += [self.speculate(length) for length in buckets.lengths if runner.draft]
        known = {spec.name for spec in general}
        return [replace(spec, general=True) for spec in general] + [spec for spec in later if spec.name not in known]

    def prefill(self, size: int, length: int) -> ProgramSpec:
        def arguments(slot: int, position: int) -> tuple[Any, ...]:
            chunk = PromptChunk.of(slot, np.zeros(size, np.int32), position, 1, 0, greedy(), self._runner.shift)
            return chunk, self._no_masks()

        return self._of_output(
            f"chat_prefill_{size}x{length}",
            partial(self._runner.functions.prefill_chunk, length),
            arguments(0, 0),
            run=lambda program, slot: self._runner.run(program, *arguments(slot, length - 1)),
            use=partial(self._runner.programs.prefill.__setitem__, (size, length)),
        )

    def score(self) -> ProgramSpec:
        tokens = np.zeros(self._runner.scored_chunk, np.int32)

        def arguments(slot: int) -> tuple[Any, ...]:
            return PromptChunk.of(slot, tokens, 0, 1, 0, greedy(), self._runner.shift), self._no_masks(), tokens

        def use(program: Program) -> None:
            self._runner.programs.score = program

        return self._of_output(
            "chat_score_prompt",
            self._runner.functions.score_chunk,
            arguments(0),
            run=lambda program, slot: self._runner.run(program, *arguments(slot)),
            use=use,
        )

    def _pictures(self, vision: VisionTower) -> list[ProgramSpec]:
        """The programs of every grid; those of as many tokens share the one that writes them."""
        specs: dict[str, ProgramSpec] = {}
        for grid in vision.all_grids:
            for spec in (vision.spec(grid), self.picture(vision, grid)):
                specs.setdefault(spec.name, spec)
        return list(specs.values())

    def picture(self, vision: VisionTower, grid: Grid) -> ProgramSpec:
        length = self._runner.context  # the attention reads no further than a query sees
        position = np.int32(0)
        positions = np.zeros((vision.axes, grid.count), np.int32) if vision.axes else None
        like = vision.seen_shape(grid)
        shape = ShownPicture(grid.tokens, like.embeddings, like.deep, positions)

        def run(program: Program, slot: int) -> DecodeOutput:
            def zeros(leaf: Any) -> Any:
                return jax.device_put(np.zeros(leaf.shape, leaf.dtype), self._runner.replicated)

            embeddings, deep = jax.tree.map(zeros, like)
            shown = ShownPicture(grid.tokens, embeddings, deep, positions)
            return self._runner.run(program, np.int32(slot), shown, position)

        return self._of_output(
            f"chat_picture_{grid.count}_{grid.embeddings}",
            partial(self._runner.functions.write_picture, length),
            (np.int32(0), shape, position),
            run=run,
            use=partial(self._runner.programs.picture.__setitem__, (grid.count, grid.embeddings)),
        )

    def decode(self, count: int, length: int) -> ProgramSpec:
        def run(program: Program, slot: int) -> DecodeOutput:
            self._begin(slot)
            which, active, _ = self._runner.columns([slot], count)
            return self._runner.run(program, which, active, np.int32(1), self._no_masks(count))

        return self._of_output(
            f"chat_decode_{count}x{length}",
            partial(self._runner.functions.decode_chunk, length),
            (np.zeros(count, np.int32), np.zeros(count, bool), np.int32(0), self._no_masks(count)),
            run=run,
            use=partial(self._runner.programs.decode.__setitem__, (count, length)),
        )

    def speculate(self, length: int) -> ProgramSpec:
        def run(program: Program, slot: int) -> DecodeOutput:
            self._begin(slot)
            return self._runner.run(program, np.int32(slot), np.int32(1), np.int32(1))

        return self._of_output(
            f"chat_speculate_{length}",
            partial(self._runner.functions.speculate_chunk, length),
            (np.int32(0),) * 3,
            run=run,
            use=partial(self._runner.programs.speculate.__setitem__, length),
            static="" if self._runner.vision is None else "pictures",  # which its drafts leave out
        )

    def copy(self, length: int) -> ProgramSpec:
        def once(program: Program, slot: int) -> None:
            self._runner.run_copy(program, slot, slot, length, length)
            self._runner.programs.copy[length] = program

        return ProgramSpec(
            name=f"chat_copy_{length}",
            function=partial(self._runner.functions.copy_slot, length),
            args=(*self._held, *(np.int32(0),) * 4),
            donate=(0, 1),
            shardings=self._kept,
            join=partial(self._between_calls, once),
        )

    def clear(self) -> ProgramSpec:
        def once(program: Program, slot: int) -> None:
            self._runner.programs.clear = program
            self._runner.clear(slot)

        return ProgramSpec(
            name="chat_clear",
            function=self._runner.functions.clear_slot,
            args=(self._held[0], np.int32(0)),
            donate=(0,),
            shardings=self._kept[0],
            join=partial(self._between_calls, once),
        )

    def _no_masks(self, *slots: int) -> TokenMasks[np.ndarray]:
        return no_masks(self._runner.vocabulary, *slots)

    def _of_output(
        self,
        name: str,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        *,
        run: Callable[[Program, int], DecodeOutput],
        use: Callable[[Program], None],
        static: str = "",
    ) -> ProgramSpec:
        """A program that takes weights, cache, state and `arguments`, and returns cache, state and output.

        Args:
            name, function: of the program.
            arguments: examples.
            run: calls the program once, with a free slot.
            use: takes it into use.
            static: as for `Programs.compile`.
        """

        def once(program: Program, slot: int) -> None:
            np.asarray(run(program, slot).tokens)
            use(program)

        return ProgramSpec(
            name=name,
            function=function,
            args=(self._runner.weights, *self._held, *arguments),
            donate=(1, 2),
            shardings=(*self._kept, self._runner.replicated),
            static=static,
            join=partial(self._between_calls, once),
        )

    def _begin(self, slot: int) -> None:
        """Give a slot a prompt and one token that is left to make, so that a program has something to do."""
        tokens = np.zeros(self._runner.chunk_sizes[0], np.int32)
        self._runner.prefill(PromptChunk.of(slot, tokens, 0, 1, 2, greedy(), self._runner.shift))

    def _between_calls(self, once: Callable[[Program, int], None], program: Program) -> None:
        def run(slot: int) -> None:
            once(program, slot)
            self._runner.wait()

        self._runner.between_calls(run)
