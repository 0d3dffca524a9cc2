"""Which request gets which slot, and which step the device runs next.

Requests are served round robin between clients, and first come, first served within each. A prompt is prefilled in
chunks, so that running answers continue between them. Plain Python: no jax, no threads, no clock.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hfjax_app.chat.engine.prefix_cache import PrefixCache
from hfjax_app.chat.engine.request import Request
from hfjax_app.chat.engine.stats import SlotState
from hfjax_app.chat.vision.picture import VisionPicture
from hfjax_app.line import Turns

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
