"""Which request gets which slot, and which step the device runs next.

Requests are served round robin between clients, and first come, first served within each. A prompt is prefilled in
chunks, so that running answers continue between them. Plain Python: no jax, no threads, no clock.

`PrefixCache` knows which tokens each slot's cache holds, and a request gets the slot of which its prompt reuses the
longest prefix. Its records describe the device's state after all calls dispatched so far have run; calls run
in the order of dispatch.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from hfjax_app.chat.engine.request import Request
from hfjax_app.chat.engine.stats import SlotState
from hfjax_app.chat.vision.picture import VisionPicture, outside_pictures
from hfjax_app.line import Turns

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


# Decode steps per call while requests wait or are prefilled; divided by the number of those being prefilled.
CONTENDED_CHUNK = 4


@dataclass(frozen=True, kw_only=True)
class PrefillStep:
    """The next chunk of a prompt: a call with room for `size` tokens writes prompt[start:stop] into the request's slot.

    A picture has two calls of its own, so that others' answers go on between them: one in which the vision tower `sees`
    it, and one that writes it.

    If `source` is given, the positions below `start` are copied from that slot first; positions below `written` may
    have been written there.
    """

    request: Request
    start: int
    stop: int
    size: int
    source: int | None = None
    written: int = 0
    picture: VisionPicture | None = None
    sees: bool = False

    @property
    def slot(self) -> int:
        assert self.request.slot is not None
        return self.request.slot

    @property
    def requests(self) -> tuple[Request, ...]:
        return (self.request,)

    @property
    def is_last(self) -> bool:
        return self.stop == len(self.request.prompt)


@dataclass(frozen=True, kw_only=True)
class DecodeStep:
    """The next tokens of all requests whose prompt is in the cache.

    Args:
        requests: all of them have a slot.
        steps: of the call.
        length: of the cache: all positions are below it.
        tokens: the most tokens that each request may get.
        draft: tokens that each step may add to its one.
        constrained: whether the requests are.
    """

    requests: tuple[Request, ...]
    steps: int
    length: int
    tokens: int
    draft: int = 0
    constrained: bool = False

    @property
    def slots(self) -> list[int]:
        """The requests' slots, in order."""
        return [request.slot for request in self.requests if request.slot is not None]


class Scheduler:
    """Holds the queue and the slots.

    Args:
        slots: how many requests run at the same time.
        prefill_chunks: possible sizes of a prefill step in tokens, smallest first. Larger ones are used only while no
            answer is running, because a running answer would pause for so long.
        decode_chunk: the most tokens that a decode step makes for each request.
        positions_before_wrap, rollback: how much of a slot can be rolled back, as in PrefixCache.
        scored_chunk: the size of a prefill step with log-probabilities of the prompt.
    """

    def __init__(
        self,
        *,
        slots: int,
        prefill_chunks: tuple[int, ...],
        decode_chunk: int,
        positions_before_wrap: int,
        rollback: int,
        scored_chunk: int = 1,
    ):
        self.prefill_chunks, self.decode_chunk, self.scored_chunk = prefill_chunks, decode_chunk, scored_chunk
        self.slots = PrefixCache(
            count=slots, positions_before_wrap=positions_before_wrap, rollback=rollback, chunk=prefill_chunks[0]
        )
        self.waiting: Turns[Request] = Turns(lambda request: request.client)
        self.running: list[Request | None] = [None] * slots
        self._prefilling: deque[Request] = deque()

    @property
    def busy(self) -> int:
        """Slots in use."""
        return sum(request is not None for request in self.running)

    def states(self) -> tuple[SlotState, ...]:
        """What each slot holds and does."""
        return tuple(
            SlotState(doing="free", reused=len(self.slots[index].tokens))
            if request is None
            else SlotState(
                doing="decode" if request.scheduled else "prefill",
                reused=request.reused,
                prefilled=request.prefilled - request.reused,
                prompt=len(request.prompt),
                made=len(request.answer),
            )
            for index, request in enumerate(self.running)
        )

    @property
    def decoding(self) -> tuple[Request, ...]:
        """Requests whose prompt is in the cache and that may have tokens left to make; no constrained ones."""
        return tuple(r for r in self._started if r.constraint is None)

    @property
    def _started(self) -> Iterator[Request]:
        return (r for r in self.running if r is not None and 0 < r.scheduled < r.max_tokens)

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.busy

    def submit(self, request: Request) -> None:
        self.waiting.append(request)

    def place(self, request: Request) -> int:
        """How many requests are served before this one gets a slot; 0 when it has one."""
        return self.waiting.index(request) + 1 if request in self.waiting else 0

    def admit(self) -> list[Request]:
        """Give free slots to the requests that are next; returns those that got one."""
        admitted = []
        while self.waiting and (slot := self._choose(self.waiting[0])) is not None:
            request = self.waiting.pop(0)
            request.slot = slot
            self.running[slot] = request
            self._prefilling.append(request)
            admitted.append(request)
        return admitted

    def _choose(self, request: Request) -> int | None:
        return self.slots.choose(request.prompt, client=request.client, public=request.public)

    def next_prefill(self) -> PrefillStep | None:
        """The next chunk of the oldest unfinished prompt. Call `prefilled` once it is dispatched.

        The reused prefix is chosen with the first chunk, so that of several requests with the same system prompt only
        one is prefilled in full.
        """
        if not self._prefilling:
            return None
        request, source, written = self._prefilling[0], None, 0
        if not request.has_begun:
            assert request.slot is not None
            match = self.slots.begin(
                request.slot,
                request.prompt,
                client=request.client,
                public=request.public,
                reuses=request.prompt_logprobs is None,
            )
            request.reused = request.prefilled = match.start
            request.has_begun, source, written = True, match.source, match.written
        start, size, picture, sees = request.prefilled, self.prefill_chunks[0], None, False
        ahead = next((placed for placed in request.pictures if placed.start >= start), None)
        if ahead is not None and ahead.start == start:
            picture, sees = ahead.picture, request.seen != start
            stop, size = (start, 0) if sees else (ahead.stop, ahead.stop - start)
        else:
            left = (len(request.prompt) if ahead is None else ahead.start) - start
            if request.prompt_logprobs is not None:
                size = self.scored_chunk
            elif not any(r is not None and r.scheduled for r in self.running):
                size = max(filter(lambda wide: wide <= 2 * left, self.prefill_chunks), default=size)
            stop = start + min(size, left)
        return PrefillStep(
            request=request,
            start=start,
            stop=stop,
            size=size,
            source=source,
            written=written,
            picture=picture,
            sees=sees,
        )

    def prefilled(self, step: PrefillStep) -> None:
        """Record that this step was dispatched; the prompt's last one also makes the answer's first token."""
        if step.sees:
            step.request.seen = step.start
            return
        step.request.prefilled = step.stop
        self.slots.wrote(step.slot, step.request.prompt[: step.stop], step.stop)
        if step.is_last:
            step.request.scheduled = 1
            self._prefilling.popleft()

    def next_decode(self, most: int | None = None, draft: int = 0) -> DecodeStep | None:
        """More tokens for the requests that may have some left to make. Call `decoded` once it is dispatched.

        There are fewer steps while a request waits for a slot or is prefilled, so that it does not wait long, and fewer
        still if several are prefilled, because all of them wait for each step.

        Args:
            most: the most steps; None: decode_chunk.
            draft: tokens that a step may make besides its one.
        """
        requests = self.decoding
        if not requests:
            return None
        limit = self.decode_chunk if most is None else min(most, self.decode_chunk)
        if self.waiting or self._prefilling:
            limit = min(limit, max(1, CONTENDED_CHUNK // max(1, len(self._prefilling))))
        left = max(r.max_tokens - r.scheduled for r in requests)
        steps = min(limit, left)
        tokens = min(steps * (1 + draft), self.decode_chunk, left)
        return DecodeStep(requests=requests, steps=steps, length=_length(requests, tokens), tokens=tokens, draft=draft)

    def next_constrained(self) -> DecodeStep | None:
        """One more token for the constrained requests whose newest token was read. Call `decoded` as well."""
        requests = tuple(r for r in self._started if r.constraint is not None and r.scheduled == len(r.answer))
        if not requests:
            return None
        return DecodeStep(requests=requests, steps=1, length=_length(requests, 1), tokens=1, constrained=True)

    def decoded(self, step: DecodeStep) -> None:
        """Record that this step was dispatched."""
        for request, slot in zip(step.requests, step.slots, strict=True):
            request.scheduled += step.tokens  # may exceed max_tokens: an earlier drafting call may make less
            request.drafted = max(request.drafted, step.draft)
            self.slots.wrote(slot, request.prompt, len(request.prompt) + self._written(request))

    def unschedule(self, request: Request, tokens: int) -> None:
        """Record that a drafting step made so many tokens fewer than scheduled; they are left to make."""
        if not request.released:
            request.scheduled -= tokens

    def release(self, request: Request, *, exact: bool = False) -> None:
        """Remove a request, wherever it is, and free its slot.

        Args:
            request: to remove.
            exact: every token that the device has made for it was read.
        """
        request.released = True
        if request.slot is None:
            self.waiting.remove(request)
            return
        self.running[request.slot] = None
        if request in self._prefilling:
            self._prefilling.remove(request)
        if request.has_begun:
            held = (*request.prompt[: request.prefilled], *request.answer[:-1])  # the newest token is not in the cache
            bound = request.prefilled + self._written(request)
            self.slots.wrote(request.slot, held, min(bound, len(held) + request.drafted) if exact else bound)
        self.slots.free(request.slot)

    def _written(self, request: Request) -> int:
        """How many positions after the prompt may have been written: also by drafts, but never by the last token."""
        return max(min(request.scheduled + request.drafted, request.max_tokens) - 1, 0)


def _length(requests: Sequence[Request], tokens: int) -> int:
    """The length of the cache that covers so many more tokens of each request."""
    return max(len(r.prompt) + min(r.scheduled + tokens, r.max_tokens) - 1 for r in requests)
