"""How much memory a chat model takes on each device, computed from shapes, and the error when a device has too little.

Does not measure: the compiler's figures are in plan.py.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import jax
import jax.numpy as jnp

from hfjax_app.chat.model.buckets import length_buckets, slot_buckets
from hfjax_app.chat.model.kv_cache import WITH_POSITIONS, CacheShape, LayerSpec
from hfjax_app.chat.model.model_runner import ModelRunner
from hfjax_app.errors import ModelUnavailable

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class SlotMemory:
    """Bytes of the slots' cache on each device, for any number of slots and any context.

    Args:
        states: bytes of one slot that do not depend on the length.
        positions: pairs: bytes of one position of one slot, and how many positions a ring has at most; None: as many as
            the context.
    """

    states: int
    positions: tuple[tuple[int, int | None], ...]

    def cache(self, slots: int, context: int) -> int:
        return self.filled(slots, context, context)

    def filled(self, slots: int, length: int, context: int) -> int:
        """Bytes of the first `length` positions of so many slots."""
        return slots * self._first(length, context)

    def copied(self, slots: int, context: int, buckets: tuple[int, ...] | None = None) -> int:
        """Bytes of the largest copy that a program makes of a part of the cache, see `buckets.py`.

        Args:
            slots, context: of the whole cache.
            buckets: numbers of slots that decode programs are compiled for; None: the default for so many slots.
        """
        counts = {1, *(buckets or slot_buckets(slots))}
        parts = {(count, length) for count in counts for length in length_buckets(context)} - {(slots, context)}
        return max((count * self._first(length, context) for count, length in parts), default=0)

    def _first(self, length: int, context: int) -> int:
        """Bytes of the first positions of one slot."""
        return self.states + sum(size * min(length, context if most is None else most) for size, most in self.positions)


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Bytes on each device.

    Args:
        weights: with buffers.
        cache: of all slots.
        copied: of the cache, while a program for some of the slots or positions runs.
        slot: gives cache and copies for other numbers of slots and tokens.
    """

    weights: int
    cache: int
    copied: int
    slot: SlotMemory

    @property
    def held(self) -> int:
        """Bytes that must fit at the same time, as far as shapes tell."""
        return self.weights + self.cache + self.copied


def largest_fitting(slots: int, context: int, fits: Callable[[int, int], bool]) -> tuple[int, int]:
    """The most slots below `slots`, and the longest context below `context` (a multiple of 64), that fit; 0 for none.

    Args:
        slots, context: a size that does not fit.
        fits: whether so many slots of so many tokens fit.
    """
    fewer, shorter = range(slots - 1, 0, -1), range((context - 1) // 64 * 64, 0, -64)
    return (
        next((count for count in fewer if fits(count, context)), 0),
        next((tokens for tokens in shorter if fits(slots, tokens)), 0),
    )


def estimate_memory(runner: ModelRunner) -> MemoryEstimate:
    """The memory that a runner takes; its weights may be shapes, and have shardings."""
    specs, cache, sizes = runner.decoder.specs, runner.cache_shape, (runner.slots, runner.context)
    chunk = runner.chunk_sizes[-1]
    return memory_of(specs, cache, runner.weights, *sizes, chunk=chunk, buckets=runner.slot_buckets)


def memory_of(
    specs: Sequence[LayerSpec],
    cache: CacheShape,
    weights: Mapping[str, jax.Array | jax.ShapeDtypeStruct],
    slots: int,
    context: int,
    *,
    chunk: int,
    buckets: tuple[int, ...] | None = None,
) -> MemoryEstimate:
    """The memory of a model on each device.

    Args:
        specs: of its layers.
        cache: the shapes of the cache of these slots.
        weights: with shardings.
        slots, context: sizes of the cache.
        chunk: the largest number of tokens written at once.
        buckets: as in `SlotMemory.copied`.
    """
    slot = _slot_memory(specs, cache, slots, chunk)
    return MemoryEstimate(
        weights=sum(map(held_bytes, weights.values())),
        cache=slot.cache(slots, context),
        copied=slot.copied(slots, context, buckets),
        slot=slot,
    )


def check_memory(name: str, estimate: MemoryEstimate, *, memory: int | None, slots: int, context: int) -> None:
    """Refuse a model that does not fit its devices, before anything of it is loaded.

    Args:
        name: the model as the user named it.
        estimate: for these slots and this context.
        memory: bytes that each device has; None: unknown.
        slots, context: sizes of the cache.

    Raises:
        ModelUnavailable: the memory required, the memory there is, and what would fit.
    """
    if memory is None or estimate.held <= memory:
        return

    def fits(slots: int, context: int) -> bool:
        return estimate.weights + estimate.slot.cache(slots, context) + estimate.slot.copied(slots, context) <= memory

    fitting, tokens = largest_fitting(slots, context, fits)
    ways = [f"slots = {fitting}"] if fitting else []
    ways += [f"context = {tokens}"] if tokens else []
    ways += ["quantize = int8", "more devices", "a smaller model"]
    raise ModelUnavailable(
        f"chat model {name!r} needs {estimate.weights / GIB:.1f} GiB for weights, {estimate.cache / GIB:.1f} GiB for "
        f"{slots} slots of {context} tokens and {estimate.copied / GIB:.1f} GiB for copies of some of them on each "
        f"device, which has {memory / GIB:.1f} GiB; what may fit: " + ", ".join(ways)
    )


def _slot_memory(specs: Sequence[LayerSpec], cache: CacheShape, slots: int, chunk: int) -> SlotMemory:
    states, positions = 0, Counter[int | None]()
    for spec, layer in zip(specs, cache, strict=True):
        for name, leaf in layer.items():
            size = held_bytes(leaf) // slots
            if name in WITH_POSITIONS:
                positions[None if spec.window is None else spec.window + chunk] += size // spec.positions
            else:
                states += size
    return SlotMemory(states=states, positions=tuple((size, most) for most, size in positions.items()))


def held_numbers(array: jax.Array | jax.ShapeDtypeStruct) -> int:
    """Numbers of an array on each device."""
    return prod(array.shape if array.sharding is None else array.sharding.shard_shape(array.shape))


def held_bytes(array: jax.Array | jax.ShapeDtypeStruct) -> int:
    """Bytes of an array on each device."""
    return held_numbers(array) * int(jnp.dtype(array.dtype).itemsize)
