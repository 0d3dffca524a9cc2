"""How much memory a chat model takes on each device, computed from shapes, and the error when a device has too little.

The compiler's figures are in plan.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hfjax_app.chat.model.buckets import SlotMemory
from hfjax_app.chat.model.model_runner import ModelRunner
from hfjax_app.chat.options import EngineOptions
from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime.memory import held_bytes

GIB = 1 << 30

Arrays = Mapping[str, Any]  # with a shape, a dtype and a sharding


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
    tower: Arrays = {} if runner.vision is None else runner.vision.weights
    return memory_of(runner.memory, runner.options, runner.weights, tower)


def memory_of(slot: SlotMemory, options: EngineOptions, weights: Arrays, tower: Arrays) -> MemoryEstimate:
    """The memory of a model on each device.

    Args:
        slot: of its layers.
        options: slots, context and buckets count.
        weights: with shardings.
        tower: the weights that see pictures, which decoding does not read.
    """
    slots, context = options.slots, options.context
    return MemoryEstimate(
        weights=held_by(weights) + held_by(tower),
        cache=slot.cache(slots, context),
        copied=slot.copied(slots, context, options.buckets),
        slot=slot,
    )


def held_by(weights: Arrays) -> int:
    """Bytes on each device."""
    return sum(map(held_bytes, weights.values()))


def check_memory(name: str, estimate: MemoryEstimate, options: EngineOptions, *, memory: int | None) -> None:
    """Refuse a model that does not fit its devices, before anything of it is loaded.

    Args:
        name: the model as the user named it.
        estimate: with these options.
        options: of the engine.
        memory: bytes that each device has; None: unknown.

    Raises:
        ModelUnavailable: the memory required, the memory there is, and what would fit.
    """
    if memory is None or estimate.held <= memory:
        return
    slots, context = options.slots, options.context

    def fits(slots: int, context: int) -> bool:
        return estimate.weights + estimate.slot.held(slots, context) <= memory

    fitting, tokens = largest_fitting(slots, context, fits)
    ways = [f"slots = {fitting}"] if fitting else []
    ways += [f"context = {tokens}"] if tokens else []
    ways += ["quantize = int8", "more devices", "a smaller model"]
    raise ModelUnavailable(
        f"chat model {name!r} needs {estimate.weights / GIB:.1f} GiB for weights, {estimate.cache / GIB:.1f} GiB for "
        f"{slots} slots of {context} tokens and {estimate.copied / GIB:.1f} GiB for copies of some of them on each "
        f"device, which has {memory / GIB:.1f} GiB; what may fit: " + ", ".join(ways)
    )
