"""How much memory a chat model takes on each device, computed from shapes, and the error when a device has too little.

Does not measure: the compiler's figures are in plan.py.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from transformers import PreTrainedModel

from hfjax_app.chat.model.buckets import length_buckets, slot_buckets
from hfjax_app.chat.model.kv_cache import WITH_POSITIONS
from hfjax_app.chat.model.model_runner import ModelRunner
from hfjax_app.errors import ModelUnavailable

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class SlotMemory:
    """Bytes of the slots' cache on each device, for any number of slots and any context up to the runner's.

    Args:
        states: bytes of one slot that do not depend on the length.
        positions: pairs: bytes of one position of one slot, and how many positions a ring has at most; None: as many as
            the context.
    """

    states: int
    positions: tuple[tuple[int, int | None], ...]

    def cache(self, slots: int, context: int) -> int:
        return slots * self._first(context, context)

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
        read: of the weights, for one decoding step: all but an embedding that is only looked up.
        slot: gives cache and copies for other numbers of slots and tokens.
    """

    weights: int
    cache: int
    copied: int
    read: int
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


def estimate_memory(runner: ModelRunner, model: PreTrainedModel) -> MemoryEstimate:
    """The memory that a runner takes; its weights may be shapes.

    Args:
        runner: its weights have shardings.
        model: has the names of the weights.
    """
    slot = _slot_memory(runner)
    weights = sum(map(_held, runner.weights.values()))
    return MemoryEstimate(
        weights=weights,
        cache=slot.cache(runner.slots, runner.context),
        copied=slot.copied(runner.slots, runner.context, runner.slot_buckets),
        read=weights - sum(_held(runner.weights[name]) for name in _only_looked_up(model, runner.weights)),
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


def _slot_memory(runner: ModelRunner) -> SlotMemory:
    states, positions = 0, Counter[int | None]()
    for spec, layer in zip(runner.decoder.specs, runner.cache_shape, strict=True):
        for name, leaf in layer.items():
            size = _held(leaf) // runner.slots
            if name in WITH_POSITIONS:
                positions[None if spec.window is None else spec.positions] += size // spec.positions
            else:
                states += size
    return SlotMemory(states=states, positions=tuple((size, most) for most, size in positions.items()))


def _only_looked_up(model: PreTrainedModel, weights: Mapping[str, Any]) -> list[str]:
    """The input embedding, unless the output layer reads the same array; with int8 a tied output layer has its own."""
    names = {module: f"{name}.weight" for name, module in model.named_modules()}
    embedding, output = names.get(model.get_input_embeddings()), names.get(model.get_output_embeddings())
    return [embedding] if embedding is not None and {embedding, output} <= weights.keys() else []


def _held(array: jax.Array | jax.ShapeDtypeStruct) -> int:
    """Bytes of an array on each device."""
    shape: tuple[int, ...] = array.shape if array.sharding is None else array.sharding.shard_shape(array.shape)
    return prod(shape) * int(jnp.dtype(array.dtype).itemsize)
