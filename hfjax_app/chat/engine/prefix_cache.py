"""What each slot's cache holds, and which slot a request gets so that as little as possible is computed again.

Plain Python: no jax, no threads. Positions and tokens here are those that the device has or will have when the calls
dispatched so far have run; calls run in the order in which they are dispatched.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

NO_TOKENS: tuple[int, ...] = ()


@dataclass(kw_only=True, eq=False)
class Slot:
    """One slot's record.

    Args:
        tokens: what the rows hold: tokens[i] at position i. What else they hold that nobody has read is not listed.
        written: one past the highest position that was written since the slot last began at 0. A ring has lost what lay
            a whole ring before that.
        floor: what `written` was when the present or last request began.
        busy: whether a request has it.
        used: when it was last used; larger is later.
    """

    tokens: tuple[int, ...] = NO_TOKENS
    written: int = 0
    floor: int = 0
    busy: bool = False
    used: int = 0


@dataclass(frozen=True, kw_only=True)
class PrefixMatch:
    """Where a request's prefill begins: `start` tokens are there already, in its slot or in `source`, to be copied.

    In the source, positions below `written` may have been written.
    """

    start: int
    source: int | None = None
    written: int = 0


@dataclass(kw_only=True, eq=False)
class PrefixCache:
    """The records of all slots.

    Args:
        count: how many.
        positions_before_wrap: up to this position no ring has lost anything, so that all can be taken back.
        rollback: how many of the newest tokens can be taken back beyond that.
        chunk: prompt tokens a prefill call takes; what saves no call is not worth a copy.
    """

    count: int
    positions_before_wrap: int
    rollback: int
    chunk: int
    _slots: list[Slot] = field(init=False)

    def __post_init__(self) -> None:
        self._slots = [Slot() for _ in range(self.count)]
        self._clock = count(1)

    def __getitem__(self, index: int) -> Slot:
        return self._slots[index]

    def choose(self, prompt: Sequence[int]) -> int | None:
        """Give a free slot to a request; None when there is none.

        The one with the longest usable prefix, where the prompt goes on with at least half of what that holds, as the
        next turn of a conversation does and also one that was edited or asked again. Otherwise what it holds is worth
        keeping, and the slot that was unused for longest is taken; it may copy the prefix (`begin`).
        """
        free = [i for i, slot in enumerate(self._slots) if not slot.busy]
        if not free:
            return None
        usable = {i: self.usable(i, prompt) for i in free}
        chosen = max(free, key=lambda i: usable[i])
        if 2 * usable[chosen] < len(self._slots[chosen].tokens) or not usable[chosen]:
            chosen = min(free, key=lambda i: self._slots[i].used)
        self._slots[chosen].busy = True
        self._slots[chosen].used = next(self._clock)
        return chosen

    def begin(self, index: int, prompt: Sequence[int]) -> PrefixMatch:
        """Find the longest prefix of the prompt that is anywhere, and make the record of slot `index` begin with it."""
        slot = self._slots[index]
        others = [i for i in range(self.count) if i != index]
        here = self.usable(index, prompt)
        source = max(others, key=lambda i: self.usable(i, prompt), default=None)
        there = 0 if source is None else self.usable(source, prompt)
        if self._calls(prompt, there) < self._calls(prompt, here):
            slot.floor = self._slots[source].written
            self.wrote(index, prompt[:there], there)
            return PrefixMatch(start=there, source=source, written=slot.floor)
        slot.floor = slot.written if here else 0
        self.wrote(index, prompt[:here], here)
        return PrefixMatch(start=here)

    def wrote(self, index: int, tokens: Sequence[int], written: int) -> None:
        """The slot holds these tokens, and positions below `written` may have been written."""
        slot = self._slots[index]
        slot.tokens, slot.written = tuple(tokens), max(slot.floor, written)

    def usable(self, index: int, prompt: Sequence[int]) -> int:
        """How many of the prompt's first tokens need no prefill in this slot; never all, the last one gives logits."""
        slot = self._slots[index]
        start = min(_common(slot.tokens, tuple(prompt)), len(prompt) - 1)
        return start if slot.written <= self.positions_before_wrap or slot.written - start <= self.rollback else 0

    def free(self, index: int) -> None:
        """The request is over; what the slot holds stays."""
        self._slots[index].busy = False
        self._slots[index].used = next(self._clock)

    def forget(self, index: int) -> None:
        """The slot holds nothing that can be trusted."""
        self._slots[index].tokens, self._slots[index].written = NO_TOKENS, 0

    def forget_all(self) -> None:
        for index in range(self.count):
            self.forget(index)

    def _calls(self, prompt: Sequence[int], start: int) -> int:
        return -(-(len(prompt) - start) // self.chunk)


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Length of the common prefix, by bisection: slices are compared in C."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
