"""What a chat model needs of each device, by arithmetic on shapes, and the refusal where a device hasn't got it."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from transformers import PreTrainedModel

from hfjax_app.chat.model.buckets import length_buckets, slot_buckets
from hfjax_app.chat.model.kv_cache import WITH_ROWS
from hfjax_app.chat.model.model_runner import ModelRunner
from hfjax_app.errors import ModelUnavailable

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class SlotMemory:
    """Bytes of slots' cache on each device, for any number of slots and any context up to the one that was asked for.

    Args:
        states: of one slot, however long it is.
        rows: of one row of one slot, with how many rows there are at most: of a ring, or None: as the context.
    """

    states: int
    rows: tuple[tuple[int, int | None], ...]

    def cache(self, slots: int, context: int) -> int:
        return slots * self._first(context, context)

    def copied(self, slots: int, context: int, buckets: tuple[int, ...] | None = None) -> int:
        """Of the largest part of the cache that a program copies, see `buckets.py`: all but one work on copies.

        Args:
            slots, context: of all slots.
            buckets: numbers of slots that decode programs are for; None: those of so many slots.
        """
        counts = {1, *(buckets or slot_buckets(slots))}
        parts = {(count, rows) for count in counts for rows in length_buckets(context)} - {(slots, context)}
        return max((count * self._first(rows, context) for count, rows in parts), default=0)

    def _first(self, rows: int, context: int) -> int:
        """One slot's first rows."""
        return self.states + sum(size * min(rows, context if most is None else most) for size, most in self.rows)


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Bytes on each device.

    Args:
        weights: with buffers.
        cache: of all slots.
        copied: of the cache, while a program of some of the slots or rows runs.
        read: of the weights, for one decoding step: all but an embedding that is only looked up.
        slot: what cache and copies are for other numbers of slots and tokens.
    """

    weights: int
    cache: int
    copied: int
    read: int
    slot: SlotMemory

    @property
    def held(self) -> int:
        """All that must have room at once, as far as shapes say."""
        return self.weights + self.cache + self.copied


def largest_fitting(slots: int, context: int, fits: Callable[[int, int], bool]) -> tuple[int, int]:
    """The most slots below `slots`, and the longest context below `context` (a multiple of 64), that fit; 0 for none.

    Args:
        slots, context: what doesn't fit.
        fits: whether so many slots of so many tokens do.
    """
    fewer, shorter = range(slots - 1, 0, -1), range((context - 1) // 64 * 64, 0, -64)
    return (
        next((count for count in fewer if fits(count, context)), 0),
        next((tokens for tokens in shorter if fits(slots, tokens)), 0),
    )


def estimate_memory(runner: ModelRunner, model: PreTrainedModel) -> MemoryEstimate:
    """The need of a runner, whose weights may be shapes.

    Args:
        runner: its weights have shardings.
        model: with the names that the weights have.
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


def check_memory(name: str, need: MemoryEstimate, *, memory: int | None, slots: int, context: int) -> None:
    """Refuse a model that its devices can't hold, before anything of it is loaded.

    Args:
        name: what the user called the model.
        memory: bytes that each device has; None where nobody knows.
        slots, context: what `need` is for.

    Raises:
        ModelUnavailable: what it needs, what there is, and what would fit.
    """
    if memory is None or need.held <= memory:
        return

    def fits(slots: int, context: int) -> bool:
        return need.weights + need.slot.cache(slots, context) + need.slot.copied(slots, context) <= memory

    fitting, tokens = largest_fitting(slots, context, fits)
    ways = [f"slots = {fitting}"] if fitting else []
    ways += [f"context = {tokens}"] if tokens else []
    ways += ["quantize = int8", "more devices", "a smaller model"]
    raise ModelUnavailable(
        f"chat model {name!r} needs {need.weights / GIB:.1f} GiB for weights, {need.cache / GIB:.1f} GiB for {slots} "
        f"slots of {context} tokens and {need.copied / GIB:.1f} GiB for copies of some of them on each device, which "
        f"has {memory / GIB:.1f} GiB; what may fit: " + ", ".join(ways)
    )


def _slot_memory(runner: ModelRunner) -> SlotMemory:
    states, rows = 0, Counter[int | None]()
    for spec, layer in zip(runner.decoder.specs, runner.cache_shape, strict=True):
        for name, leaf in layer.items():
            size = _held(leaf) // runner.slots
            if name in WITH_ROWS:
                rows[None if spec.window is None else spec.rows] += size // spec.rows
            else:
                states += size
    return SlotMemory(states=states, rows=tuple((size, most) for most, size in rows.items()))


def _only_looked_up(model: PreTrainedModel, weights: Mapping[str, Any]) -> list[str]:
    """The input embedding, unless the output layer reads the same array; int8 gives a tied one an array of its own."""
    names = {module: f"{name}.weight" for name, module in model.named_modules()}
    embedding, output = names.get(model.get_input_embeddings()), names.get(model.get_output_embeddings())
    return [embedding] if {embedding, output} <= weights.keys() else []


def _held(array: jax.ShapeDtypeStruct) -> int:
    """Bytes of an array on each device."""
    shape = array.shape if array.sharding is None else array.sharding.shard_shape(array.shape)
    return prod(shape) * jnp.dtype(array.dtype).itemsize
