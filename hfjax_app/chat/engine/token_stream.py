"""The client's side of a request: its progress, the ticket that cancels it, and the stream of its tokens.

Does not decode tokens to text: see `chat/text/`.
"""

import queue
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hfjax_app.chat.engine.scheduler import Request
from hfjax_app.chat.sampling.logprobs import TokenLogprobs
from hfjax_app.errors import HfjaxError


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What the engine reports to a request's client.

    Args:
        tokens: the new tokens.
        logprobs: one entry per token if the request's params ask for them, else empty.
        reused_tokens: prompt tokens that needed no prefill; known with the first tokens.
        drafted_tokens: tokens that were drafted from the conversation to make these.
        accepted_tokens: drafted tokens that were accepted.
        finish_reason: None while running, then "stop" (an end token), "length" (max tokens), "context" (the slot is
            full) or "cancelled".
        error: set if the engine failed on this request or stopped (EngineStopped), or its constraint failed.
    """

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    reused_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    finish_reason: str | None = None
    error: HfjaxError | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None or self.error is not None


class Ticket:
    """A submitted request. Any thread may call `cancel`, repeatedly; the slot is free within one decode chunk."""

    def __init__(self, request: Request, place: Callable[[Request], int]):
        self._request, self._place = request, place

    def cancel(self) -> None:
        self._request.cancelled = True

    @property
    def place(self) -> int:
        """Place in the queue: 1 is next; 0: being served, or finished."""
        return self._place(self._request)


class TokenStream(Iterator[int]):
    """An answer's token ids as they are made. Closing it, leaving its `with` block or dropping it cancels the request.

    Args:
        submit: puts the request into the queue; its argument is the function to call with each Progress.

    Raises:
        EngineStopped: from `next`, if the engine stops or fails on this request before the answer is finished.
        ConstraintFailed: from `next`.
    """

    def __init__(self, submit: Callable[[Callable[[Progress], None]], Ticket]):
        self._inbox: queue.SimpleQueue[Progress] = queue.SimpleQueue()
        self._tokens: deque[int] = deque()
        self.finish_reason: str | None = None
        self.reused_tokens = self.drafted_tokens = self.accepted_tokens = 0
        self._ticket = submit(self._inbox.put)

    def __next__(self) -> int:
        while not self._tokens:
            if self.finish_reason is not None:
                raise StopIteration
            progress = self._inbox.get()
            self._tokens.extend(progress.tokens)
            self.finish_reason = progress.finish_reason
            self.reused_tokens = max(self.reused_tokens, progress.reused_tokens)
            self.drafted_tokens += progress.drafted_tokens
            self.accepted_tokens += progress.accepted_tokens
            if progress.error is not None:
                self.finish_reason = "error"
                raise progress.error
        return self._tokens.popleft()

    def close(self) -> None:
        self._ticket.cancel()

    def __enter__(self) -> "TokenStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_ticket"):  # missing if `submit` raised
            self.close()
