"""Whether planned models fit their chips, and what would fit if not, the cheapest first.

Does not compile: `together.py` does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hfjax_app.chat.memory import MemoryEstimate, largest_fitting
from hfjax_app.planning.topology import Topology, by_cost

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
    """What would fit where models do not.

    Args:
        int8: whether int8 weights would, on the same chips.
        slots, context: the largest number of slots, or of tokens of context; 0: no number of them fits.
        topology: the cheapest one, with the settings as they are; None: none is known.
        topology_with_int8: the cheapest one with int8 weights, where that is cheaper than all others.
    """

    slots: int
    context: int
    topology: str | None
    int8: bool = False
    topology_with_int8: str | None = None

    def __str__(self) -> str:
        ways = []
        if self.int8:
            ways.append("quantize = int8")
        if self.slots:
            ways.append(f"slots = {self.slots}")
        if self.context:
            ways.append(f"context = {self.context}")
        if self.topology_with_int8:
            ways.append(f"topology {self.topology_with_int8} with quantize = int8")
        if self.topology:
            ways.append(f"topology {self.topology}")
        return " or ".join(ways) or "no topology that is known here; a smaller model would"


def fits(peak: float, topology: Topology) -> bool:
    """Whether `peak` bytes on the fullest chip fit."""
    return topology.usable is None or peak <= topology.usable


def advise(
    memory: ChipMemory,
    topology: Topology,
    slots: int,
    context: int,
    estimate_on: Callable[[int, str], MemoryEstimate],
    *,
    beside: int = 0,
    quantize: str = "none",
    prices: Mapping[str, float] = MappingProxyType({}),
) -> Advice:
    """What would fit, by arithmetic on the compiled figures.

    The cache and the copies of its positions depend on slots and context; the rest is constant.

    Args:
        memory: the compiled figures for these slots and this context.
        topology: the chips that are too small.
        slots, context, quantize: as requested.
        estimate_on: the estimate for each device, by number of devices and quantisation.
        beside: bytes of the other models on the first chip, in every topology.
        prices: dollars of a chip for an hour, by its name.
    """
    estimate = memory.estimate
    padding = memory.resident / max(1, estimate.weights + estimate.cache)  # from the chip's layouts
    more = max(0, memory.decoding - estimate.copied * padding)  # temporary memory besides the copies

    def peak(estimate: MemoryEstimate, slots: int, context: int) -> float:
        copied = estimate.slot.copied(slots, context) * padding
        held = (estimate.weights + estimate.slot.cache(slots, context)) * padding
        return held + max(memory.others, copied + more) + beside

    def peak_with(quantize: str) -> Callable[[int], float]:
        return lambda devices: peak(estimate_on(devices, quantize), slots, context)

    fewer, shorter = largest_fitting(slots, context, lambda *size: fits(peak(estimate, *size), topology))
    as_asked = larger(topology, peak_with(quantize), prices)
    if quantize != "none":
        return Advice(slots=fewer, context=shorter, topology=as_asked)
    with_int8 = larger(topology, peak_with("int8"), prices)
    return Advice(
        int8=fits(peak_with("int8")(topology.devices), topology),
        slots=fewer,
        context=shorter,
        topology_with_int8=None if with_int8 == as_asked else with_int8,
        topology=as_asked,
    )


def larger(
    topology: Topology, peak: Callable[[int], float], prices: Mapping[str, float] = MappingProxyType({})
) -> str | None:
    """The cheapest topology with more memory, in all or on each chip, that is large enough.

    Args:
        topology: the one that is too small.
        peak: bytes on the fullest device, by number of devices.
        prices: dollars of a chip for an hour, by its name.
    """
    assert topology.usable is not None  # a CPU has no limit here
    each, whole = _TOLERANCE * topology.usable, _TOLERANCE * topology.usable * topology.devices
    for other in by_cost(prices):
        assert other.usable is not None
        more = other.usable > each or other.usable * other.devices > whole
        if more and fits(peak(other.devices), other):
            return other.name
    return None
