"""Whether a planned model fits its chips, what would fit if it doesn't, and how fast a decoding step can be at best."""

from collections.abc import Callable
from dataclasses import dataclass

from hfjax_app.planning.topology import NAMES, Topology, parse


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes on each chip: arrays that stay (weights, cache, state), and the largest temporary beside them."""

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
    """What would fit where a model doesn't: at most so many slots, or so many tokens of context; the next topology."""

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


def fits(footprint: Footprint, topology: Topology) -> bool:
    return topology.usable is None or footprint.peak <= topology.usable


def advise(
    footprint: Footprint, topology: Topology, slots: int, context: int, on_devices: Callable[[int], tuple[int, int]]
) -> Advice:
    """Arithmetic on the compiled figures: the cache grows with slots and context, the rest is taken as it is.

    Args:
        footprint: what was compiled, for these slots and this context.
        topology: where it doesn't fit.
        slots, context: what was asked for.
        on_devices: weights and cache, bytes on each of so many devices.
    """
    padding = footprint.resident / max(1, footprint.weights + footprint.cache)  # layouts of the chip, rounded up
    room = topology.usable - footprint.temporary - footprint.weights * padding
    per_slot = footprint.cache * padding / slots
    per_token = footprint.per_slot_token * padding * slots
    fixed = footprint.cache * padding - per_token * context
    larger = None
    for name in NAMES:
        other = parse(name)
        if (other.devices * other.chip.hbm) <= topology.devices * topology.chip.hbm:
            continue
        weights, cache = on_devices(other.devices)
        if (weights + cache) * padding + footprint.temporary <= other.usable:
            larger = name
            break
    tokens = int((room - fixed) / per_token) // 64 * 64 if per_token else 0
    return Advice(
        slots=max(0, min(slots - 1, int(room / per_slot))) if per_slot else 0,
        context=tokens if 64 <= tokens < context else 0,
        topology=larger,
    )


def decode_floor(weights_read: int, cache: int, slots: int, topology: Topology) -> Floor | None:
    """The memory-bandwidth floor of a step with every slot full; None where the bandwidth is unknown."""
    if topology.chip is None:
        return None
    read = weights_read + cache
    return Floor(bytes_read=read, seconds=read / topology.chip.bandwidth, slots=slots)
