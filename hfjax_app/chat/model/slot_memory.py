"""Bytes of the slots' cache on each device, computed from shapes.

Does not cover weights and what devices have: `chat/memory.py` does.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import jax
import jax.numpy as jnp

from hfjax_app.chat.model.bucket_choice import Buckets, buckets_by_bytes, every_bucket
from hfjax_app.chat.model.kv_cache import WITH_POSITIONS, CacheShape, LayerSpec


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


def held_numbers(array: jax.Array | jax.ShapeDtypeStruct) -> int:
    """Numbers of an array on each device."""
    return prod(array.shape if array.sharding is None else array.sharding.shard_shape(array.shape))


def held_bytes(array: jax.Array | jax.ShapeDtypeStruct) -> int:
    """Bytes of an array on each device."""
    return held_numbers(array) * int(jnp.dtype(array.dtype).itemsize)
