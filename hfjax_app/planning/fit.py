"""Whether planned models fit their chips, what would fit if they don't, and how fast a decoding step can be at best."""

from collections.abc import Callable
from dataclasses import dataclass

from hfjax_app.chat.memory import MemoryEstimate, largest_fitting
from hfjax_app.planning.topology import NAMES, Topology, parse

_OWN_ACCOUNT = 1.1  # a chip that is here says that it has a little less than its vendor does


@dataclass(frozen=True, kw_only=True)
class ChipMemory:
    """A chat model's bytes on each chip.

    Args:
        estimate: by arithmetic.
        resident: arrays that stay (weights, cache, state), with the padding of the chip's layouts.
        decoding: the largest temporary of the programs that copy slots' caches to decode them.
        others: the largest temporary of the others.
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
    """What would fit where models don't: at most so many slots, or so many tokens of context; the next topology.

    0 slots and 0 tokens: no number of them would.
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
    """A decoding step can't be faster than its bytes come from memory."""

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
    """Whether so many bytes on the fullest chip are no more than it can take."""
    return topology.usable is None or peak <= topology.usable


def advise(
    footprint: ChipMemory,
    topology: Topology,
    slots: int,
    context: int,
    estimate_on: Callable[[int], MemoryEstimate],
    *,
    beside: int = 0,
) -> Advice:
    """Arithmetic on the compiled figures: the cache and the copies of its parts follow from slots and context, the rest
    is taken as it is.

    Args:
        footprint: what was compiled, for these slots and this context.
        topology: where it doesn't fit.
        slots, context: what was asked for.
        estimate_on: what each of so many devices would have to hold.
        beside: bytes that the other models take on the first chip, which they have to themselves nowhere.
    """
    estimate = footprint.estimate
    padding = footprint.resident / max(1, estimate.weights + estimate.cache)  # layouts of the chip, rounded up
    more = max(0, footprint.decoding - estimate.copied * padding)  # what decoding takes besides the copies

    def peak(estimate: MemoryEstimate, slots: int, context: int) -> float:
        copied = estimate.slot.copied(slots, context) * padding
        held = (estimate.weights + estimate.slot.cache(slots, context)) * padding
        return held + max(footprint.others, copied + more) + beside

    fewer, shorter = largest_fitting(slots, context, lambda *size: fits(peak(estimate, *size), topology))
    return Advice(
        slots=fewer,
        context=shorter,
        topology=larger(topology, lambda devices: peak(estimate_on(devices), slots, context)),
    )


def larger(topology: Topology, peak: Callable[[int], float]) -> str | None:
    """The next topology with more memory, in all or on each chip, that has room.

    Args:
        topology: the one without.
        peak: bytes on the fullest of so many devices.
    """
    for name in NAMES:
        other = parse(name)
        each, here = _memory(other), _OWN_ACCOUNT * _memory(topology)
        if (each > here or other.devices * each > topology.devices * here) and fits(peak(other.devices), other):
            return name
    return None


def _memory(topology: Topology) -> int:
    """Bytes of each chip."""
    assert topology.chip is not None  # everything fits a CPU
    return topology.chip.hbm


def decode_floor(weights_read: int, cache: int, slots: int, topology: Topology) -> Floor | None:
    """The memory-bandwidth floor of a step with every slot full; None where the bandwidth is unknown."""
    if topology.chip is None:
        return None
    read = weights_read + cache
    return Floor(bytes_read=read, seconds=read / topology.chip.bandwidth, slots=slots)
