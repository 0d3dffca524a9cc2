"""The lower bound of a step's time: to read its bytes and to do its arithmetic, by the chip's published figures.

What a device can't do faster, not what it does. Collectives, attention's own products and the cost of a call are left
out. Does not cover what a model reads: `chat/weight_use.py` and `chat/model/buckets.py` do.
"""

from dataclasses import dataclass

from hfjax_app.chat.model.buckets import SlotMemory
from hfjax_app.chat.weight_use import WeightUse
from hfjax_app.planning.topology import Topology


@dataclass(frozen=True, kw_only=True)
class Floor:
    """The lower bound of a decoding step, in which each of so many slots gets a token."""

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


def decode_floor(
    use: WeightUse, cache: SlotMemory, topology: Topology, *, slots: int, length: int, context: int
) -> Floor:
    """The floor of a step of so many slots that hold `length` tokens each.

    Args:
        use, cache: the model's, on each device of the topology.
        topology: of chips; a CPU's figures are unknown.
        slots, length: of the step.
        context: of the cache, in tokens.
    """
    read = use.read(slots) + cache.filled(slots, length, context)
    seconds = _seconds(topology, read, 2 * slots * (use.products + use.output))
    return Floor(bytes_read=read, seconds=seconds, slots=slots)


def prefill_floor(use: WeightUse, topology: Topology, tokens: int) -> float:
    """Seconds until the first token after a prompt of so many."""
    return _seconds(topology, use.read(tokens), 2 * (tokens * use.products + use.output))


def _seconds(topology: Topology, read: int, operations: float) -> float:
    """The time of a device for the slower one of both."""
    chip = topology.chip
    assert chip is not None
    return chip.devices * max(read / chip.bandwidth, operations / chip.flops)
