"""Buckets: programs for 1, 2, 4, ... slots, for cache lengths of 256, 1024, 4096, ... positions, and for short and long
chunks of a prompt. Each call runs the smallest bucket that covers it.

A bucket's program works on a copy of the positions that it needs, and writes them back in place when it ends. So what a
decode step reads depends on the requests being served, not on the size of the cache. The largest bucket works on the
cache itself.

A model on a CPU has every step of these ladders, on accelerators those that pay. There a step's time is that of its
bytes: all weights, and the positions of the program's slots. A smaller bucket than those that could serve its requests
exists only where it reads a good part less. Sizes of prefill calls follow from the chip: so many tokens take as long as
one, because their arithmetic takes as long as to read the weights.

`SlotMemory` has the bytes of the slots on each device, from shapes.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from hfjax_app.chat.model.kv_cache import WITH_POSITIONS, CacheShape, LayerSpec
from hfjax_app.runtime.memory import held_bytes

SMALLEST_LENGTH = 256
SAVED = 0.15  # of a step's bytes, that a bucket must save on an accelerator
STEPS = 4  # of the short calls beside a prefill: for each call, a bucket's positions are read and written once more
# A TPU does the arithmetic of 240 (v5e) to 560 (v6e) tokens while it reads bfloat16 weights once.
PIECES = (256, 512)

# Numbers of slots, and of their first positions -> bytes of the cache.
Filled = Callable[[int, int], int]


def length_buckets(context: int) -> tuple[int, ...]:
    """256, 1024, 4096, ... positions up to half the context, then the context; one bucket for a context of 512 or less.

    Reading a cache that small is so fast that a second set of programs costs more at the start than it ever saves.
    """
    if context <= 2 * SMALLEST_LENGTH:
        return (context,)
    buckets, length = [], SMALLEST_LENGTH
    while length <= context // 2:
        buckets.append(length)
        length *= 4
    return (*buckets, context)


def prefill_buckets(chunk: int, context: int) -> tuple[int, ...]:
    """Prompt tokens of a prefill call: a chunk, and four times as many where the context has several length buckets.

    Longer chunks use a processor better: on a CPU, 512 tokens in two calls take 60 % of the time of eight calls.
    """
    return (chunk,) if len(length_buckets(context)) == 1 else (chunk, 4 * chunk)


def slot_buckets(slots: int, wanted: Sequence[int] | None = None) -> tuple[int, ...]:
    """1, 2, 4, ... slots, or the given numbers, and all slots."""
    if wanted is None:
        wanted = [2**i for i in range(slots.bit_length())]
    return (*sorted({count for count in wanted if 1 <= count < slots}), slots)


def smallest_covering(buckets: tuple[int, ...], needed: int) -> int:
    """The smallest bucket of at least `needed`."""
    return next(bucket for bucket in buckets if bucket >= needed)


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """The buckets of one number of slots and one context.

    Args:
        decode: pairs of a number of slots and a cache length, sorted; the last one is all slots and the context.
        lengths: cache lengths of the programs for one slot, sorted; the last one is the context.
    """

    decode: tuple[tuple[int, int], ...]
    lengths: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of slots, sorted."""
        return tuple(sorted({count for count, _ in self.decode}))

    @property
    def all_lengths(self) -> tuple[int, ...]:
        """Cache lengths of any program, sorted."""
        return tuple(sorted({*self.lengths, *(length for _, length in self.decode)}))

    @property
    def copied(self) -> frozenset[tuple[int, int]]:
        """Numbers of slots and lengths that programs copy: all but the whole cache, and one slot."""
        whole = self.decode[-1]
        return frozenset({*self.decode, *((1, length) for length in self.lengths)} - {whole})


def every_bucket(slots: int, context: int, wanted: Sequence[int] | None = None) -> Buckets:
    """The buckets of a CPU: each length with each number of slots; `wanted` is as for `slot_buckets`."""
    lengths = length_buckets(context)
    return Buckets(
        decode=tuple((count, length) for count in slot_buckets(slots, wanted) for length in lengths), lengths=lengths
    )


def buckets_by_bytes(
    slots: int, context: int, *, weights: int, filled: Filled, wanted: Sequence[int] | None = None
) -> Buckets:
    """The buckets of an accelerator: from the largest down, each that saves SAVED of the smallest one that covers it.

    A bucket of both fewer slots and a shorter length serves fewer calls, and must save twice as much.

    Args:
        slots, context: of the whole cache.
        weights: their bytes on a device.
        filled: bytes of the cache on a device.
        wanted: numbers of slots that have a bucket of the whole context in any case; None: as bytes tell.
    """
    whole = (slots, context)

    def of_step(bucket: tuple[int, int]) -> float:
        return weights + filled(*bucket) * (1.0 if bucket == whole else 1 + 2 / STEPS)

    decode = {whole} if wanted is None else {(count, context) for count in slot_buckets(slots, wanted)}
    ladder = [(count, length) for count in slot_buckets(slots, wanted) for length in length_buckets(context)]

    def by_size(bucket: tuple[int, int]) -> tuple[bool, float]:
        return is_small(bucket), -of_step(bucket)

    def is_small(bucket: tuple[int, int]) -> bool:
        return bucket[0] < slots and bucket[1] < context

    for bucket in sorted(set(ladder) - decode, key=by_size):
        covering = [other for other in decode if other[0] >= bucket[0] and other[1] >= bucket[1]]
        saved = 2 * SAVED if is_small(bucket) else SAVED
        if of_step(bucket) <= (1 - saved) * min(map(of_step, covering)):
            decode.add(bucket)
    lengths = [context]
    for length in reversed(length_buckets(context)[:-1]):
        if weights + filled(1, length) <= (1 - SAVED) * (weights + filled(1, lengths[-1])):
            lengths.append(length)
    return Buckets(decode=tuple(sorted(decode)), lengths=tuple(reversed(lengths)))


def pieces(context: int) -> tuple[int, ...]:
    """Prompt tokens of a prefill call on an accelerator, smallest first."""
    return tuple(sorted({min(size, context) for size in PIECES}))


@dataclass(frozen=True, kw_only=True)
class SlotMemory:
    """Bytes of the slots' cache on each device, for any number of slots and any context.

    Args:
        states: bytes of one slot that do not depend on the length.
        positions: pairs: bytes of one position of one slot, and how many positions a ring has at most; None: as many as
            the context.
        weights: bytes of the weights on an accelerator, where buckets follow from bytes; None: on a CPU.
    """

    states: int
    positions: tuple[tuple[int, int | None], ...]
    weights: int | None = None

    def cache(self, slots: int, context: int) -> int:
        return self.filled(slots, context, context)

    def filled(self, slots: int, length: int, context: int) -> int:
        """Bytes of the first `length` positions of so many slots."""
        return slots * self._first(length, context)

    def buckets(self, slots: int, context: int, wanted: Sequence[int] | None = None) -> Buckets:
        """The buckets of so many slots and this context.

        Args:
            slots, context: of the whole cache.
            wanted: numbers of slots that decode programs are compiled for, besides all; None: the default.
        """
        if self.weights is None:
            return every_bucket(slots, context, wanted)
        filled = partial(self.filled, context=context)
        return buckets_by_bytes(slots, context, weights=self.weights, filled=filled, wanted=wanted)

    def copied(self, slots: int, context: int, wanted: Sequence[int] | None = None) -> int:
        """Bytes of the largest copy that a program makes of a part of the cache; arguments as for `buckets`."""
        parts = self.buckets(slots, context, wanted).copied
        return max((self.filled(count, length, context) for count, length in parts), default=0)

    def held(self, slots: int, context: int) -> int:
        """Bytes of the cache, and of the largest copy of a part of it."""
        return self.cache(slots, context) + self.copied(slots, context)

    def _first(self, length: int, context: int) -> int:
        """Bytes of the first positions of one slot."""
        return self.states + sum(size * min(length, context if most is None else most) for size, most in self.positions)


def slot_memory(
    specs: Sequence[LayerSpec], cache: CacheShape, slots: int, chunk: int, weights: int | None = None
) -> SlotMemory:
    """The bytes of these layers.

    Args:
        specs: of the layers.
        cache: the shapes of the cache of so many slots, with shardings.
        slots: of the cache.
        chunk: the largest number of tokens written at once.
        weights: as in SlotMemory.
    """
    states, positions = 0, Counter[int | None]()
    for spec, layer in zip(specs, cache, strict=True):
        for name, leaf in layer.items():
            size = held_bytes(leaf) // slots
            if name in WITH_POSITIONS:
                positions[None if spec.window is None else spec.window + chunk] += size // spec.positions
            else:
                states += size
    found = tuple((size, most) for most, size in positions.items())
    return SlotMemory(states=states, positions=found, weights=weights)
