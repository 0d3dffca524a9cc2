"""The engine's thread: what the device does next, who hears of what it made, and what a failure costs.

Checking what comes from outside is llm_engine.py's, deciding whose turn it is scheduler.py's.
"""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from hfjax_app.chat.engine.draft_policy import DraftPolicy, DraftTracker
from hfjax_app.chat.engine.scheduler import DecodeStep, PrefillStep, Request, Scheduler
from hfjax_app.chat.engine.stats import EngineStats
from hfjax_app.chat.engine.steps_per_call import StepsPerCall
from hfjax_app.chat.engine.token_stream import Progress
from hfjax_app.chat.model.decode_state import NOT_A_NUMBER, NOTHING, DecodeOutput, Drafts
from hfjax_app.chat.model.model_runner import ModelRunner
from hfjax_app.chat.sampling.logprobs import TokenLogprobs, handed_out
from hfjax_app.errors import EngineStopped, RequestRejected, kind_and_line
from hfjax_app.limits import CHAT_QUEUE

MAX_FAILURES = 3  # in a row, with nothing that went well in between: then the engine gives up

_Kind = tuple[int, bool]  # of a decode call: for how many slots, and whether it drafts


@dataclass(kw_only=True, eq=False)
class Handle:
    """The engine's side of a request."""

    deliver: Callable[[Progress], None]
    sampler: np.ndarray  # uint32 [words], sampling.packed
    top_logprobs: int | None
    length_reason: str
    recall: DraftTracker | None = None  # from when the request was first alone


@dataclass(frozen=True, kw_only=True, eq=False)
class _Call:
    """A device call whose tokens have not been read yet, and the column of each request in them."""

    made: DecodeOutput
    columns: dict[Request, int]
    step: DecodeStep | None  # None: a prefill
    dispatched_at: float


class EngineLoop:
    """Owns the device: its thread alone calls the runner's programs, in rounds; requests come in under a lock.

    Args:
        runner: compiled before `start`.
        end_tokens: ids that end an answer.
        always_drafts: draft for whoever is alone, whether it pays or not.
    """

    def __init__(self, runner: ModelRunner, end_tokens: tuple[int, ...], *, always_drafts: bool = False):
        self.runner, self.end_tokens = runner, end_tokens
        self.scheduler = Scheduler(
            slots=runner.slots,
            prefill_chunks=runner.prefill_chunks,
            decode_chunk=runner.decode_chunk,
            positions_before_wrap=runner.positions_before_wrap,
            rollback=runner.rollback,
        )
        self.alive = False
        self._changed = threading.Condition()  # guards scheduler and alive; never held while the device computes
        self._calls: deque[_Call] = deque()  # dispatched, in the device's order; only the thread touches it
        self._steps_per_call: defaultdict[_Kind, StepsPerCall] = defaultdict(lambda: StepsPerCall(runner.decode_chunk))
        self._draft_policy, self._always_drafts = DraftPolicy(), always_drafts
        self._read_at = 0.0  # when the newest call that was read had ended, at the latest
        self._failures = 0
        self._cause: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._requests = self._tokens = self._reused = self._wasted = self._prefills = self._decodes = 0
        self._drafted = self._accepted = 0

    @property
    def started(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        self.alive = True
        self._thread = threading.Thread(target=self._run, name="chat-engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; whoever still waits gets EngineStopped. May be called twice."""
        with self._changed:
            self.alive = False
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    @property
    def why(self) -> str:
        """Why the engine doesn't run."""
        if self._cause is None:
            return "it was stopped, or never started"
        return f"it failed {self._failures} times in a row, at last with {kind_and_line(self._cause)}"

    def submit(self, request: Request) -> None:
        """Put a request in line.

        Raises:
            EngineStopped: the thread is not running.
            RequestRejected: the line is full.
        """
        with self._changed:
            if not self.alive:
                raise EngineStopped(f"the chat engine is not running: {self.why}") from self._cause
            if len(self.scheduler.waiting) >= CHAT_QUEUE:
                raise RequestRejected(f"the chat engine is busy: {CHAT_QUEUE} requests are waiting; try again later")
            self.scheduler.submit(request)
            self._requests += 1
            self._changed.notify()

    def place(self, request: Request) -> int:
        with self._changed:
            return self.scheduler.place(request)

    def stats(self) -> EngineStats:
        with self._changed:
            return EngineStats(
                slots=len(self.scheduler.running),
                busy=self.scheduler.busy,
                waiting=len(self.scheduler.waiting),
                requests=self._requests,
                tokens=self._tokens,
                reused_tokens=self._reused,
                wasted_tokens=self._wasted,
                prefill_calls=self._prefills,
                decode_calls=self._decodes,
                drafted_tokens=self._drafted,
                accepted_tokens=self._accepted,
            )

    def _run(self) -> None:
        try:
            while self.alive:
                if not self.step():
                    with self._changed:
                        for request in filter(None, [*self.scheduler.running]):
                            self._fail(request, AssertionError("no call is left that would make its tokens"))
                        self._changed.wait_for(lambda: not self.scheduler.idle or not self.alive)
        except Exception as error:
            self._cause = error
        finally:
            self._fail_everyone()

    def step(self) -> bool:
        """One round: take requests in, schedule, run, hand tokens out.

        The newest call is left running while the tokens of those before it are handed out, so that the device never
        waits for the host. What it does to slots that turn out to have finished is nothing: no tokens are left to make
        there, on the device. The next request in such a slot is prefilled by a later call.

        Returns:
            False when there was no work.
        """
        self._take_in()
        prefilled = self._run_prefill(self._schedule_prefill())
        decoded = self._run_decode(self._schedule_decode())
        return self._hand_out_calls(leave_newest=prefilled or decoded)

    def _take_in(self) -> None:
        """Cancelled requests leave, and those that waited longest get the free slots."""
        with self._changed:
            leaving = [r for r in (*self.scheduler.waiting, *self.scheduler.running) if r is not None and r.cancelled]
        if any(request.slot is not None for request in leaving):
            # Before another request gets the slot, it must be known whether NaNs are in it.
            self._hand_out_calls(leave_newest=False)
        with self._changed:
            for request in leaving:
                if not request.released:
                    self._finish(request, Progress(finish_reason="cancelled"))
            self.scheduler.admit()

    def _schedule_prefill(self) -> PrefillStep | None:
        with self._changed:
            return self.scheduler.next_prefill()

    def _schedule_decode(self) -> DecodeStep | None:
        """Plain steps, or rounds that draft where those are faster for the one answer that runs."""
        with self._changed:
            width = self.runner.width(len(self.scheduler.decoding))
            step = self.scheduler.next_decode(self._steps_per_call[width, False].steps)
            if step is not None and self._drafts(step):
                step = self.scheduler.next_decode(self._steps_per_call[width, True].steps, self.runner.draft)
            return step

    def _run_prefill(self, step: PrefillStep | None) -> bool:
        """Dispatch a chunk of a prompt; whether there was one."""
        if step is not None:
            self._attempt(self._prefill, step, [step.request])
        return step is not None

    def _run_decode(self, step: DecodeStep | None) -> bool:
        """Dispatch some tokens of each answer; whether there were any to make."""
        if step is not None:
            self._attempt(self._decode, step, list(step.requests))
        return step is not None

    def _hand_out_calls(self, *, leave_newest: bool) -> bool:
        """Wait for calls in order and hand out what they made; whether there was any call, the newest included."""
        worked = leave_newest or bool(self._calls)
        while len(self._calls) > leave_newest:
            self._attempt(self._collect, self._calls.popleft(), None)
        return worked

    def _attempt(self, step: Callable[[Any], None], argument: Any, concerned: list[Request] | None) -> None:
        """Do a step; when it fails, fail the requests concerned with its cause and go on.

        Args:
            step: what to do.
            argument: its argument.
            concerned: whose request it is; None: everyone's that has a slot, because the cache is in doubt.

        Raises:
            Exception: the step's, when it was the last of MAX_FAILURES in a row.
        """
        try:
            step(argument)
        except Exception as error:
            self._failures += 1
            if self._failures >= MAX_FAILURES:
                raise
            with self._changed:
                if concerned is None or not self.runner.intact:
                    concerned = list(filter(None, self.scheduler.running))
                    self._calls.clear()
                    self.runner.reset()
                    self.scheduler.slots.forget_all()
                for request in concerned:
                    self._fail(request, error)

    def _prefill(self, step: PrefillStep) -> None:
        request = step.request
        if step.source is not None:
            self.runner.copy(step.source, request.slot, step.start, step.written)
        if step.start == request.reused:
            self._reused += request.reused
        chunk = np.zeros(step.size, np.int32)
        chunk[: step.stop - step.start] = request.prompt[step.start : step.stop]
        max_tokens = request.max_tokens if step.is_last else 0
        made = self.runner.prefill(
            request.slot, chunk, step.start, step.stop - step.start, max_tokens, request.handle.sampler
        )
        self._prefills += 1
        self._dispatched(made, {request: 0})
        with self._changed:
            self.scheduler.prefilled(step)

    def _decode(self, step: DecodeStep) -> None:
        if step.draft:
            made, columns = self.runner.speculate(step.requests[0].slot, step.rows, step.steps, step.tokens)
        else:
            made, columns = self.runner.decode([request.slot for request in step.requests], step.rows, step.steps)
        self._decodes += 1
        self._dispatched(made, dict(zip(step.requests, columns, strict=True)), step)
        with self._changed:
            self.scheduler.decoded(step)

    def _drafts(self, step: DecodeStep) -> bool:
        """Whether this step, for one request, is better made by rounds that draft. Holds the lock."""
        if not self.runner.draft or len(step.requests) > 1:
            return False
        [request] = step.requests
        if self._always_drafts:
            return True
        if request.handle.recall is None:
            request.handle.recall = DraftTracker(request.prompt, self.runner.draft)
        request.handle.recall.extend(request.answer)
        return self._draft_policy.wants(request.handle.recall, self.runner.bucket(step.rows))

    def _dispatched(self, made: DecodeOutput, columns: dict[Request, int], step: DecodeStep | None = None) -> None:
        made.tokens.copy_to_host_async()  # on its way as soon as it is made
        now = time.perf_counter()
        self._calls.append(_Call(made=made, columns=columns, step=step, dispatched_at=now))

    def _collect(self, call: _Call) -> None:
        """Wait for a call and hand out what it made."""
        answers, drafts = _read(call)
        self._failures = 0
        began, self._read_at = max(call.dispatched_at, self._read_at), time.perf_counter()
        if call.step is not None:
            self._observe(call.step, max(len(tokens) for _, tokens, _ in answers), drafts, self._read_at - began)
        with self._changed:
            for request, tokens, logprobs in answers:
                self._hand_out(request, tokens, logprobs, drafts)
                if drafts is not None:
                    self.scheduler.fell_short(request, call.step.tokens - len(tokens))

    def _observe(self, step: DecodeStep, made: int, drafts: Drafts | None, seconds: float) -> None:
        """What a decode call took, for the next ones."""
        steps, drafted = (made, 0) if drafts is None else (drafts.rounds, drafts.drafted_rounds)
        self._steps_per_call[self.runner.width(len(step.requests)), drafts is not None].observe(steps, seconds)
        if len(step.requests) == 1:
            self._draft_policy.observe(self.runner.bucket(step.rows), steps=steps, drafted=drafted, seconds=seconds)

    def _hand_out(
        self,
        request: Request,
        tokens: tuple[int, ...],
        logprobs: tuple[TokenLogprobs, ...],
        drafts: Drafts | None = None,
    ) -> None:
        """Deliver new tokens of a running request and release it when they were its last. Holds the lock."""
        if NOT_A_NUMBER in tokens:  # also of one who has left: the rows must not reach the next one
            if not request.released:
                self._fail(request, FloatingPointError("the model's logits are not numbers (NaN or infinite)"))
                self.runner.clear(request.slot)
            return
        if request.cancelled or request.released:
            self._wasted += len(tokens)
            return
        request.answer.extend(tokens)
        reason = None
        if tokens and tokens[-1] in self.end_tokens:
            tokens, logprobs, reason = tokens[:-1], logprobs[:-1], "stop"
        elif len(request.answer) >= request.max_tokens:
            reason = request.handle.length_reason
        self._tokens += len(tokens)
        drafted, accepted = (0, 0) if drafts is None else (drafts.drafted, drafts.accepted)
        self._drafted, self._accepted = self._drafted + drafted, self._accepted + accepted
        progress = Progress(
            tokens=tokens,
            logprobs=logprobs,
            reused_tokens=request.reused,
            drafted_tokens=drafted,
            accepted_tokens=accepted,
            finish_reason=reason,
        )
        if reason is not None:
            self._finish(request, progress, exact=True)
        elif tokens:
            _tell(request, progress)

    def _finish(self, request: Request, last: Progress, *, exact: bool = False) -> None:
        self.scheduler.release(request, exact=exact)
        _tell(request, last)

    def _fail(self, request: Request, cause: Exception) -> None:
        error = EngineStopped(f"the chat engine failed on this request, and goes on: {kind_and_line(cause)}")
        error.__cause__ = cause
        self._finish(request, Progress(error=error))
        if request.slot is not None:
            self.scheduler.slots.forget(request.slot)

    def _fail_everyone(self) -> None:
        """The thread is ending: tell every request why, and accept no more."""
        with self._changed:
            self.alive = False
            for request in [*self.scheduler.waiting, *filter(None, self.scheduler.running)]:
                error = EngineStopped(f"the chat engine stopped: {self.why}")
                error.__cause__ = self._cause
                self._finish(request, Progress(error=error))


def _tell(request: Request, progress: Progress) -> None:
    """Call the owner. One whose callback raises doesn't listen: its request is cancelled, and nobody else's."""
    try:
        request.handle.deliver(progress)
    except Exception:
        request.cancelled = True


def _read(call: _Call) -> tuple[list[tuple[Request, tuple[int, ...], tuple[TokenLogprobs, ...]]], Drafts | None]:
    """Wait for what a call made: each request's tokens, and their log-probabilities where it wants them; and drafts."""
    wanted = any(request.handle.top_logprobs is not None for request in call.columns)
    made = call.made if wanted else call.made._replace(logprobs=None)
    tokens, logprobs, drafts = jax.device_get(made)
    answers = []
    for request, column in call.columns.items():
        made_here = tokens[:, column] != NOTHING
        ids, top = tuple(tokens[made_here, column].tolist()), request.handle.top_logprobs
        own = jax.tree.map(lambda leaf, at=(made_here, column): leaf[at], logprobs)
        answers.append((request, ids, () if top is None else handed_out(own, top)))
    return answers, None if drafts is None else Drafts(*map(int, drafts))
