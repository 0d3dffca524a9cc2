"""Whether planned models fit their chips, what would fit if not, and the lower bound of a decoding step's time.

Does not compile: `together.py` does.
"""

from collections.abc import Callable
from dataclasses import dataclass

from hfjax_app.chat.memory import MemoryEstimate, largest_fitting
from hfjax_app.planning.topology import NAMES, Topology, parse

_TOLERANCE = 1.1  # a real chip reports slightly less memory than its vendor's figure


@dataclass(frozen=True, kw_only=True)
class ChipMemory:
    """A chat model's bytes on each chip.

    Args:
        estimate: computed from shapes.
        resident: arrays that stay (weights, cache, state), with the padding of the chip's layouts.
        decoding: the largest temporary memory of the programs that copy positions of slots to decode them.
        others: the largest temporary memory of the other programs.
    """

    estimate: MemoryEstimate
    resident: int
    decoding: int
    others: int = 0

    @property
    def peak(self) -> int:
        return self.resident + max(self.decoding, self.others)


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What would fit where models do not: the largest number of slots, or of tokens of context; the next topology.

    0 slots or 0 tokens: no number of them fits.
    """

    slots: int
    context: int
    topology: str | None

    def __str__(self) -> str:
        ways = []
        if self.slots:
            ways.append(f"slots = {self.slots}")
        if self.context:
            ways.append(f"context = {self.context}")
        if self.topology:
            ways.append(f"topology {self.topology}")
        return " or ".join(ways) or "no topology that is known here; a smaller model, or int8"


@dataclass(frozen=True, kw_only=True)
class Floor:
    """The lower bound of a decoding step's time: the time to read its bytes from memory."""

    bytes_read: int
    seconds: float
    slots: int

    @property
    def per_user(self) -> float:
        """Tokens per second."""
        return 1 / self.seconds

    @property
    def in_all(self) -> float:
        return self.slots * self.per_user


def fits(peak: float, topology: Topology) -> bool:
    """Whether `peak` bytes on the fullest chip fit."""
    return topology.usable is None or peak <= topology.usable


def advise(
    memory: ChipMemory,
    topology: Topology,
    slots: int,
    context: int,
    estimate_on: Callable[[int], MemoryEstimate],
    *,
    beside: int = 0,
) -> Advice:
    """What would fit, by arithmetic on the compiled figures.

    The cache and the copies of its positions depend on slots and context; the rest is constant.

    Args:
        memory: the compiled figures for these slots and this context.
        topology: the chips that are too small.
        slots, context: as requested.
        estimate_on: the estimate for each device, by number of devices.
        beside: bytes of the other models on the first chip, in every topology.
    """
    estimate = memory.estimate
    padding = memory.resident / max(1, estimate.weights + estimate.cache)  # from the chip's layouts
    more = max(0, memory.decoding - estimate.copied * padding)  # temporary memory besides the copies

    def peak(estimate: MemoryEstimate, slots: int, context: int) -> float:
        copied = estimate.slot.copied(slots, context) * padding
        held = (estimate.weights + estimate.slot.cache(slots, context)) * padding
        return held + max(memory.others, copied + more) + beside

    fewer, shorter = largest_fitting(slots, context, lambda *size: fits(peak(estimate, *size), topology))
    return Advice(
        slots=fewer,
        context=shorter,
        topology=larger(topology, lambda devices: peak(estimate_on(devices), slots, context)),
    )


def larger(topology: Topology, peak: Callable[[int], float]) -> str | None:
    """The next topology with more memory, in all or on each chip, that is large enough.

    Args:
        topology: the one that is too small.
        peak: bytes on the fullest device, by number of devices.
    """
    for name in NAMES:
        other = parse(name)
        each, here = _memory(other), _TOLERANCE * _memory(topology)
        if (each > here or other.devices * each > topology.devices * here) and fits(peak(other.devices), other):
            return name
    return None


def _memory(topology: Topology) -> int:
    """Bytes of each chip."""
    assert topology.chip is not None  # a CPU has no limit here
    return topology.chip.hbm


def decode_floor(weights_read: int, cache: int, slots: int, topology: Topology) -> Floor | None:
    """The memory-bandwidth floor of a step with every slot full; None if the bandwidth is unknown."""
    if topology.chip is None:
        return None
    read = weights_read + cache
    return Floor(bytes_read=read, seconds=read / topology.chip.bandwidth, slots=slots)
