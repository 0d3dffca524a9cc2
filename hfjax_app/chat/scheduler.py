"""Which request gets which slot and what the device does next. Plain Python: no jax, no threads, no clock.

Order of service is first come, first served; a prompt is fed chunk by chunk so that running answers go on between.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any


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
    prefilled: int = 0
    made: int = 0
    cancelled: bool = False


@dataclass(frozen=True, kw_only=True)
class PrefillStep:
    """The next chunk of a prompt: prompt[start:stop] goes into the request's slot."""

    request: Request
    start: int
    stop: int

    @property
    def is_last(self) -> bool:
        return self.stop == len(self.request.prompt)


class Scheduler:
    """Holds the waiting line and the slots.

    Args:
        slots: how many requests run at the same time.
        prefill_chunk: prompt tokens a prefill step takes at most.
    """

    def __init__(self, *, slots: int, prefill_chunk: int):
        self.prefill_chunk = prefill_chunk
        self.waiting: deque[Request] = deque()
        self.running: list[Request | None] = [None] * slots
        self._prefilling: deque[Request] = deque()

    @property
    def busy(self) -> int:
        """Slots in use."""
        return sum(request is not None for request in self.running)

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
        for slot, occupant in enumerate(self.running):
            if occupant is None and self.waiting:
                request = self.waiting.popleft()
                request.slot = slot
                self.running[slot] = request
                self._prefilling.append(request)
                admitted.append(request)
        return admitted

    def next_prefill(self) -> PrefillStep | None:
        """The next chunk of the oldest unfinished prompt. Call `prefilled` when it has run."""
        if not self._prefilling:
            return None
        request = self._prefilling[0]
        stop = min(request.prefilled + self.prefill_chunk, len(request.prompt))
        return PrefillStep(request=request, start=request.prefilled, stop=stop)

    def prefilled(self, step: PrefillStep) -> None:
        step.request.prefilled = step.stop
        if step.is_last:
            self._prefilling.popleft()

    def decoding(self) -> list[Request]:
        """Requests whose prompt is in the cache and whose answer is not finished."""
        return [r for r in self.running if r is not None and r.prefilled == len(r.prompt)]

    def release(self, request: Request) -> None:
        """Take a request out, wherever it is: its slot is free from now on."""
        if request.slot is None:
            self.waiting.remove(request)
            return
        self.running[request.slot] = None
        if request in self._prefilling:
            self._prefilling.remove(request)
