"""Which buckets a model has: on a CPU every step of the ladders in `buckets.py`, on accelerators those that pay.

There a step's time is that of its bytes: all weights, and the positions of the program's slots. A smaller bucket than
those that could serve its requests exists only where it reads a good part less. Sizes of prefill calls follow from the
chip: so many tokens take as long as one, because their arithmetic takes as long as to read the weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hfjax_app.chat.model.buckets import length_buckets, slot_buckets

SAVED = 0.15  # of a step's bytes, that a bucket must save on an accelerator
STEPS = 4  # of the short calls beside a prefill: for each call, a bucket's positions are read and written once more
# A TPU does the arithmetic of 240 (v5e) to 560 (v6e) tokens while it reads bfloat16 weights once.
PIECES = (256, 512)

# Numbers of slots, and of their first positions -> bytes of the cache.
Filled = Callable[[int, int], int]


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
