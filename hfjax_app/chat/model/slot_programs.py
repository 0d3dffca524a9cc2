"""The programs over slots that a runner has in use, and how each of them is described, run once and taken into use.

Does not call them for requests: `model_runner.py` does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from hfjax_app.chat.model.decode_state import DecodeOutput
from hfjax_app.chat.sampling.params import SamplingParams
from hfjax_app.chat.sampling.sampler import packed, sampler_state
from hfjax_app.chat.sampling.token_mask import TokenMasks, no_masks
from hfjax_app.runtime.program import Program
from hfjax_app.runtime.warm_up import ProgramSpec

if TYPE_CHECKING:
    from hfjax_app.chat.model.model_runner import ModelRunner
    from hfjax_app.chat.vision.vision_tower import VisionTower


@dataclass(kw_only=True)
class SlotPrograms:
    """The programs in use. Each method gives the one that does the least for a call that any of them could serve.

    Attributes:
        prefill: by prompt tokens of the call, and cache length.
        decode: by number of slots, and cache length.
        speculate, copy: by cache length.
        clear: of one slot.
        picture: that writes a picture; None for models that read text only.
    """

    prefill: dict[tuple[int, int], Program] = field(default_factory=dict)
    decode: dict[tuple[int, int], Program] = field(default_factory=dict)
    speculate: dict[int, Program] = field(default_factory=dict)
    copy: dict[int, Program] = field(default_factory=dict)
    clear: Program | None = None
    picture: Program | None = None

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


class SlotProgramSpecs:
    """Describes the programs of a runner by shapes alone, so that its devices need not be here.

    Args:
        runner: whose `reset` must be called before a program joins.
    """

    def __init__(self, runner: "ModelRunner"):
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
        if runner.vision is not None:
            general += [runner.vision.spec(), self.picture(runner.vision)]
        few = buckets.counts[0]  # of a lone visitor
        later = [self.decode(*bucket) for bucket in buckets.decode if bucket[0] == few]
        # The longest first: a size of prefill calls is used once its program covers the whole context.
        later += [self.prefill(size, length) for size in sizes[::-1] for length in buckets.lengths[::-1]]
        later += [self.decode(*bucket) for bucket in buckets.decode if bucket[0] != few]
        later += [self.copy(length) for length in copied]
        later += others
        later += [self.speculate(length) for length in buckets.lengths if runner.draft]
        known = {spec.name for spec in general}
        return [replace(spec, general=True) for spec in general] + [spec for spec in later if spec.name not in known]

    def prefill(self, size: int, length: int) -> ProgramSpec:
        def arguments(slot: int, position: int) -> tuple[Any, ...]:
            scalars = (np.int32(position), np.int32(1), np.int32(0))
            return np.int32(slot), np.zeros(size, np.int32), *scalars, greedy(), self._no_masks()

        return self._of_output(
            f"chat_prefill_{size}x{length}",
            partial(self._runner.functions.prefill_chunk, length),
            arguments(0, 0),
            run=lambda program, slot: self._runner.run(program, *arguments(slot, length - 1)),
            use=partial(self._runner.programs.prefill.__setitem__, (size, length)),
        )

    def picture(self, vision: "VisionTower") -> ProgramSpec:
        length = self._runner.context  # the attention reads no further than a query sees
        position = np.int32(0)

        def run(program: Program, slot: int) -> DecodeOutput:
            embeddings = jax.device_put(np.zeros(vision.shape.shape, vision.shape.dtype), self._runner.replicated)
            return self._runner.run(program, np.int32(slot), embeddings, position)

        def use(program: Program) -> None:
            self._runner.programs.picture = program

        return self._of_output(
            "chat_picture",
            partial(self._runner.functions.write_picture, length),
            (np.int32(0), vision.shape, position),
            run=run,
            use=use,
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
        self._runner.prefill(slot, np.zeros(self._runner.chunk_sizes[0], np.int32), 0, 1, 2, greedy())

    def _between_calls(self, once: Callable[[Program, int], None], program: Program) -> None:
        def run(slot: int) -> None:
            once(program, slot)
            self._runner.wait()

        self._runner.between_calls(run)
