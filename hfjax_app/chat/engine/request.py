"""A request on its way through the engine, and its client's side of it: progress, ticket, stream of tokens."""

import queue
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from hfjax_app.chat.engine.decode_calls import DraftTracker
from hfjax_app.chat.sampling.logprobs import TokenLogprobs
from hfjax_app.chat.vision.picture import PlacedPicture
from hfjax_app.errors import HfjaxError


class Constraint(Protocol):
    """The tokens that an answer may go on with. It belongs to one request; only the engine's thread calls it.

    `chat/text/grammar.py` has one made of a grammar.

    Attributes:
        allowed: uint32 [words], as in TokenMasks; not all zeros until the answer is complete. Holds the end tokens
            where the answer may end.
        is_complete: whether no token but an end token can follow.
    """

    @property
    def allowed(self) -> np.ndarray: ...

    @property
    def is_complete(self) -> bool: ...

    def accept(self, token: int) -> None:
        """Add a token to the answer, no end token; takes milliseconds at most.

        Raises:
            ConstraintFailed: what may follow can't be told.
        """


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What the engine reports to a request's client.

    Args:
        tokens: the new tokens.
        logprobs: one entry per token if the request's params ask for them, else empty.
        prompt_logprobs: of the prompt's tokens but the first one, with the first tokens; None: not asked for, or told.
        reused_tokens: prompt tokens that needed no prefill; known with the first tokens.
        drafted_tokens: tokens that were drafted from the conversation to make these.
        accepted_tokens: drafted tokens that were accepted.
        finish_reason: None while running, then "stop" (an end token), "length" (max tokens), "context" (the slot is
            full) or "cancelled".
        error: set if the engine failed on this request or stopped (EngineStopped), or its constraint failed.
    """

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    reused_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    finish_reason: str | None = None
    error: HfjaxError | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None or self.error is not None


def _unheard(progress: Progress) -> None:
    """Takes the progress of a request that has no client."""


@dataclass(kw_only=True, eq=False)
class Request:
    """A request on its way through the engine.

    Args:
        prompt: token ids, at least one; those of pictures are negative.
        max_tokens: tokens to make, at least one; prompt and answer fit the context.
        pictures: in the prompt, in order.
        positions: the model's own of the prompt's tokens, int32 [axes, tokens]; None: as they are counted.
        client: who sent it: requests of several clients are served round robin, and share no prefixes beyond `public`.
        public: how many of the first tokens are the operator's own, which all clients share.
        deliver: called with each Progress.
        sampler: uint32 [words], `sampler.packed`.
        top_logprobs: how many likely tokens the log-probabilities name; None: none are wanted.
        prompt_logprobs: the same of the prompt's tokens; then nothing that is in the cache is reused.
        length_reason: the finish reason when `max_tokens` are made.
        constraint: of the answer. What its next token may be depends on all that were read, so it gets one a call.

    Attributes, which the scheduler keeps:
        slot: its index; None while waiting.
        reused: prompt tokens that were in the cache before.
        prefilled: prompt tokens that are in the cache or were dispatched.
        seen: where the picture begins that the vision tower was last called for; -1: none.
        scheduled: tokens that the device was asked to make. It makes at most max_tokens, and fewer after an end token.
        drafted: tokens that the device may have drafted after the newest one.
        has_begun: whether its first prefill step was scheduled.
        released: it has no slot any more and is not in the queue.

    Attributes, which the engine loop keeps:
        answer: tokens that were read.
        scores: of the prompt's tokens but the first one, as far as they were read.
        cancelled: the client has left.
        arrived_at: seconds, by time.perf_counter.
        draft_tracker: made when the request is first alone.
        embeddings: of the picture that was seen and is to be written, on the devices.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    pictures: tuple[PlacedPicture, ...] = ()
    positions: np.ndarray | None = None
    client: str = ""
    public: int = 0
    deliver: Callable[[Progress], None] = _unheard
    sampler: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint32))
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    length_reason: str = "length"
    constraint: Constraint | None = None

    slot: int | None = None
    reused: int = 0
    prefilled: int = 0
    seen: int = -1
    scheduled: int = 0
    drafted: int = 0
    has_begun: bool = False
    released: bool = False

    answer: list[int] = field(default_factory=list)
    scores: list[TokenLogprobs] = field(default_factory=list)
    cancelled: bool = False
    arrived_at: float = 0.0
    draft_tracker: DraftTracker | None = None
    embeddings: Any = None

    def shift(self, at: int) -> int:
        """What the model's own position of the prompt's token `at` is beyond it."""
        return 0 if self.positions is None else int(self.positions[0, at]) - at


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
