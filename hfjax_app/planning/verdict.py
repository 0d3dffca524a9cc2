"""Whether planned models fit their chips, what would fit if they don't, and how fast a decoding step can be at best."""

from collections.abc import Callable
from dataclasses import dataclass

from hfjax_app.planning.topology import NAMES, Topology, parse

_OWN_ACCOUNT = 1.1  # a chip that is here says that it has a little less than its vendor does


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """A chat model's bytes on each chip: arrays that stay (weights, cache, state), and the largest temporary."""

    weights: int
    cache: int
    per_slot_token: int
    resident: int
    temporary: int

    @property
    def peak(self) -> int:
        return self.resident + self.temporary


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


def fits(peak: int, topology: Topology) -> bool:
    """Whether so many bytes on the fullest chip are no more than it can take."""
    return topology.usable is None or peak <= topology.usable


def advise(
    footprint: Footprint,
    topology: Topology,
    slots: int,
    context: int,
    on_devices: Callable[[int], tuple[int, int]],
    *,
    beside: int = 0,
) -> Advice:
    """Arithmetic on the compiled figures: the cache grows with slots and context, the rest is taken as it is.

    Args:
        footprint: what was compiled, for these slots and this context.
        topology: where it doesn't fit.
        slots, context: what was asked for.
        on_devices: weights and cache, bytes on each of so many devices.
        beside: bytes that the other models take on the first chip, which they have to themselves nowhere.
    """
    padding = footprint.resident / max(1, footprint.weights + footprint.cache)  # layouts of the chip, rounded up
    room = topology.usable - beside - footprint.temporary - footprint.weights * padding
    per_slot = footprint.cache * padding / slots
    per_token = footprint.per_slot_token * padding * slots
    fixed = footprint.cache * padding - per_token * context

    def peak(devices: int) -> float:
        return sum(on_devices(devices)) * padding + footprint.temporary + beside

    tokens = int((room - fixed) / per_token) // 64 * 64 if per_token else 0
    return Advice(
        slots=max(0, min(slots - 1, int(room / per_slot))) if per_slot else 0,
        context=tokens if 64 <= tokens < context else 0,
        topology=larger(topology, peak),
    )


def larger(topology: Topology, peak: Callable[[int], float]) -> str | None:
    """The next topology with more memory, in all or on each chip, that has room.

    Args:
        topology: the one without.
        peak: bytes on the fullest of so many devices.
    """
    for name in NAMES:
        other = parse(name)
        each, here = other.chip.hbm, _OWN_ACCOUNT * topology.chip.hbm
        if (each > here or other.devices * each > topology.devices * here) and fits(peak(other.devices), other):
            return name
    return None


def decode_floor(weights_read: int, cache: int, slots: int, topology: Topology) -> Floor | None:
    """The memory-bandwidth floor of a step with every slot full; None where the bandwidth is unknown."""
    if topology.chip is None:
        return None
    read = weights_read + cache
    return Floor(bytes_read=read, seconds=read / topology.chip.bandwidth, slots=slots)
