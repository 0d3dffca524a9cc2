"""Which request gets which slot and what the device does next. Plain Python: no jax, no threads, no clock.

Order of service is first come, first served; a prompt is fed chunk by chunk so that running answers go on between.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from hfjax_app.chat.engine.prefix_cache import PrefixCache

HURRIED_CHUNK = 4  # decode steps a call while somebody waits, shared out among those whose prompts are being read


@dataclass(kw_only=True, eq=False)
class Request:
    """A request on its way through the engine.

    Args:
        prompt: token ids, at least one.
        max_tokens: tokens to make, at least one; prompt and answer fit the context.
        handle: what the engine attaches; the scheduler never looks at it.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    handle: Any = None
    slot: int | None = None
    reused: int = 0  # prompt tokens that were there already
    prefilled: int = 0  # prompt tokens that are there or were given to the device
    promised: int = 0  # tokens that the device was asked to make; it makes max_tokens at most, fewer after an end token
    drafted: int = 0  # tokens that the device may have drafted behind the newest one
    answer: list[int] = field(default_factory=list)  # tokens that were read
    begun: bool = False
    cancelled: bool = False
    released: bool = False


@dataclass(frozen=True, kw_only=True)
class PrefillStep:
    """The next chunk of a prompt: prompt[start:stop] goes into the request's slot, in a call that has room for `size`.

    Before that, what is below `start` is copied from slot `source`, where there is one, in which positions below
    `written` may have been written.
    """

    request: Request
    start: int
    stop: int
    size: int
    source: int | None = None
    written: int = 0

    @property
    def is_last(self) -> bool:
        return self.stop == len(self.request.prompt)


@dataclass(frozen=True, kw_only=True)
class DecodeStep:
    """The next tokens of everyone whose prompt is in the cache: `steps` each, with positions below `rows`.

    Where each step may add `draft` tokens to its one, `tokens` is what comes of it at most.
    """

    requests: tuple[Request, ...]
    steps: int
    rows: int
    tokens: int
    draft: int = 0


class Scheduler:
    """Holds the waiting line and the slots.

    Args:
        slots: how many requests run at the same time.
        prefill_chunks: prompt tokens a prefill step takes at most, smallest first; more than the smallest only while
            nobody's answer is running, which would stand still for so long.
        decode_chunk: tokens a decode step makes at most for each request.
        positions_before_wrap, rollback: how much of a slot can be taken back, as in PrefixCache.
    """

    def __init__(
        self,
        *,
        slots: int,
        prefill_chunks: tuple[int, ...],
        decode_chunk: int,
        positions_before_wrap: int,
        rollback: int,
    ):
        self.prefill_chunks, self.decode_chunk = prefill_chunks, decode_chunk
        self.slots = PrefixCache(
            count=slots, positions_before_wrap=positions_before_wrap, rollback=rollback, chunk=prefill_chunks[0]
        )
        self.waiting: deque[Request] = deque()
        self.running: list[Request | None] = [None] * slots
        self._prefilling: deque[Request] = deque()

    @property
    def busy(self) -> int:
        """Slots in use."""
        return sum(request is not None for request in self.running)

    @property
    def decoding(self) -> tuple[Request, ...]:
        """Those whose prompt is in the cache and who may have tokens left to make."""
        return tuple(r for r in self.running if r is not None and 0 < r.promised < r.max_tokens)

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.busy

    def submit(self, request: Request) -> None:
        self.waiting.append(request)

    def place(self, request: Request) -> int:
        """How many requests are served before this one gets a slot; 0 when it has one."""
        return self.waiting.index(request) + 1 if request in self.waiting else 0

    def admit(self) -> list[Request]:
        """Give free slots to those who waited longest; returns who got one."""
        admitted = []
        while self.waiting and (slot := self.slots.choose(self.waiting[0].prompt)) is not None:
            request = self.waiting.popleft()
            request.slot = slot
            self.running[slot] = request
            self._prefilling.append(request)
            admitted.append(request)
        return admitted

    def next_prefill(self) -> PrefillStep | None:
        """The next chunk of the oldest unfinished prompt. Call `prefilled` when it was given to the device.

        What can be reused is decided with the first one, so that of several who bring the same system prompt at the
        same moment only one is prefilled in full.
        """
        if not self._prefilling:
            return None
        request, source, written = self._prefilling[0], None, 0
        if not request.begun:
            beginning = self.slots.begin(request.slot, request.prompt)
            request.reused = request.prefilled = beginning.start
            request.begun, source, written = True, beginning.source, beginning.written
        start, left = request.prefilled, len(request.prompt) - request.prefilled
        size = self.prefill_chunks[0]
        if not any(r is not None and r.promised for r in self.running):
            size = max(filter(lambda wide: wide <= 2 * left, self.prefill_chunks), default=size)
        stop = start + min(size, left)
        return PrefillStep(request=request, start=start, stop=stop, size=size, source=source, written=written)

    def prefilled(self, step: PrefillStep) -> None:
        """This step was given to the device; with the last one, the answer's first token is on its way."""
        step.request.prefilled = step.stop
        self.slots.wrote(step.request.slot, step.request.prompt[: step.stop], step.stop)
        if step.is_last:
            step.request.promised = 1
            self._prefilling.popleft()

    def next_decode(self, most: int | None = None, draft: int = 0) -> DecodeStep | None:
        """More tokens for those that may have some left to make. Call `decoded` when it has been dispatched.

        While somebody waits for a slot or is prefilled, steps are few, so that their turn comes soon; and fewer where
        several are prefilled, all of whom wait for each step, and who go on together the sooner.

        Args:
            most: steps at most; None: decode_chunk.
            draft: tokens that a step may make besides its one.
        """
        requests = self.decoding
        if not requests:
            return None
        limit = self.decode_chunk if most is None else min(most, self.decode_chunk)
        if self.waiting or self._prefilling:
            limit = min(limit, max(1, HURRIED_CHUNK // max(1, len(self._prefilling))))
        left = max(r.max_tokens - r.promised for r in requests)
        steps = min(limit, left)
        tokens = min(steps * (1 + draft), self.decode_chunk, left)
        rows = max(len(r.prompt) + min(r.promised + tokens, r.max_tokens) - 1 for r in requests)
        return DecodeStep(requests=requests, steps=steps, rows=rows, tokens=tokens, draft=draft)

    def decoded(self, step: DecodeStep) -> None:
        for request in step.requests:
            request.promised += step.tokens  # not cut at max_tokens: a call before it may still fall short
            request.drafted = max(request.drafted, step.draft)
            self.slots.wrote(request.slot, request.prompt, len(request.prompt) + self._written(request))

    def fell_short(self, request: Request, tokens: int) -> None:
        """A step that drafts has made so many tokens less than it might have; they are still to be made."""
        if not request.released:
            request.promised -= tokens

    def release(self, request: Request, *, exact: bool = False) -> None:
        """Take a request out, wherever it is: its slot is free from now on.

        Args:
            request: which one.
            exact: every token that the device has made for it was read.
        """
        request.released = True
        if request.slot is None:
            self.waiting.remove(request)
            return
        self.running[request.slot] = None
        if request in self._prefilling:
            self._prefilling.remove(request)
        if request.begun:
            held = (*request.prompt[: request.prefilled], *request.answer[:-1])  # the newest token is not in the cache
            bound = request.prefilled + self._written(request)
            self.slots.wrote(request.slot, held, min(bound, len(held) + request.drafted) if exact else bound)
        self.slots.free(request.slot)

    def _written(self, request: Request) -> int:
        """How many positions behind its prompt may have been written: also by drafts, but never by the last token."""
        return max(min(request.promised + request.drafted, request.max_tokens) - 1, 0)
