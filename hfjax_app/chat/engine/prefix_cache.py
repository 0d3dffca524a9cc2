"""Which tokens each slot's cache holds, and which slot a request gets so that its prompt reuses the longest prefix.

Records describe the device's state after all calls dispatched so far have run; calls run in the order of dispatch.
Plain Python: no jax, no threads. The scheduler's steps say what to copy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from hfjax_app.chat.vision.picture import outside_pictures

NO_TOKENS: tuple[int, ...] = ()


@dataclass(kw_only=True, eq=False)
class Slot:
    """One slot's record.

    Args:
        client: whose tokens they are; another client may reuse those that are public.
        tokens: tokens[i] is the token at position i. Tokens that were made but not read are not listed.
        written: one past the highest position that was written since the slot last began at 0. A ring has lost the
            positions more than one ring length before that.
        floor: the value of `written` when the current or last request began.
        busy: whether a request has the slot.
        used: when the slot was last used; larger is later.
    """

    client: str = ""
    tokens: tuple[int, ...] = NO_TOKENS
    written: int = 0
    floor: int = 0
    busy: bool = False
    used: int = 0


@dataclass(frozen=True, kw_only=True)
class PrefixMatch:
    """Where a request's prefill begins: the first `start` tokens are in its slot, or in slot `source`, to be copied.

    In the source, positions below `written` may have been written.
    """

    start: int
    source: int | None = None
    written: int = 0


@dataclass(kw_only=True, eq=False)
class PrefixCache:
    """The records of all slots.

    Args:
        count: number of slots.
        positions_before_wrap: up to this position no ring has wrapped, so all tokens can be rolled back.
        rollback: how many of the newest tokens can be rolled back beyond that.
        chunk: prompt tokens of a prefill call; a prefix is copied only where that saves a call.
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

    def choose(self, prompt: Sequence[int], *, client: str = "", public: int = 0) -> int | None:
        """Give a free slot to a request; None if there is none.

        Takes the slot with the longest usable prefix if the prompt reuses at least half of the slot's tokens, as the
        next turn of a conversation does, or an edited or repeated one. Otherwise the slot's tokens are worth keeping:
        takes the slot that was unused for the longest time, which may copy the prefix (`begin`).
        """
        free = [i for i, slot in enumerate(self._slots) if not slot.busy]
        if not free:
            return None
        usable = {i: self.usable(i, prompt, client=client, public=public) for i in free}
        chosen = max(free, key=lambda i: usable[i])
        if 2 * usable[chosen] < len(self._slots[chosen].tokens) or not usable[chosen]:
            chosen = min(free, key=lambda i: self._slots[i].used)
        self._slots[chosen].busy = True
        self._slots[chosen].used = next(self._clock)
        return chosen

    def begin(
        self, index: int, prompt: Sequence[int], *, client: str = "", public: int = 0, reuses: bool = True
    ) -> PrefixMatch:
        """Find the longest prefix of the prompt in any slot, and record it as the start of slot `index`.

        `reuses` False: the slot begins anew.
        """
        slot = self._slots[index]
        usable = {i: reuses * self.usable(i, prompt, client=client, public=public) for i in range(self.count)}
        here = usable.pop(index)
        source = max(usable, key=lambda i: usable[i], default=None)
        there = 0 if source is None else usable[source]
        slot.client = client
        if source is not None and self._calls(prompt, there) < self._calls(prompt, here):
            slot.floor = self._slots[source].written
            self.wrote(index, prompt[:there], there)
            return PrefixMatch(start=there, source=source, written=slot.floor)
        slot.floor = slot.written if here else 0
        self.wrote(index, prompt[:here], here)
        return PrefixMatch(start=here)

    def wrote(self, index: int, tokens: Sequence[int], written: int) -> None:
        """Record that the slot holds these tokens, and that positions below `written` may have been written."""
        slot = self._slots[index]
        slot.tokens, slot.written = tuple(tokens), max(slot.floor, written)

    def usable(self, index: int, prompt: Sequence[int], *, client: str = "", public: int = 0) -> int:
        """How many of the prompt's first tokens need no prefill in this slot, with whole pictures only. Never all: the
        last one gives logits.

        Another client's tokens count only as far as they are public: the time and the count of reused tokens would
        tell one client what another has asked.
        """
        slot = self._slots[index]
        start = outside_pictures(prompt, min(_common(slot.tokens, tuple(prompt)), len(prompt) - 1))
        if slot.client != client:
            start = min(start, public)
        return start if slot.written <= self.positions_before_wrap or slot.written - start <= self.rollback else 0

    def free(self, index: int) -> None:
        """Mark the slot as free; its tokens stay recorded."""
        self._slots[index].busy = False
        self._slots[index].used = next(self._clock)

    def forget(self, index: int) -> None:
        """Drop the slot's record: its contents are not valid."""
        self._slots[index].tokens, self._slots[index].written = NO_TOKENS, 0

    def forget_all(self) -> None:
        for index in range(self.count):
            self.forget(index)

    def _calls(self, prompt: Sequence[int], start: int) -> int:
        return -(-(len(prompt) - start) // self.chunk)


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Length of the common prefix, by bisection, because Python compares slices in C."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
