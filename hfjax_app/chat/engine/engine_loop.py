"""The engine's thread: it runs the device's calls, reads what they have made, and handles failures.

Does not check requests (llm_engine.py), choose the next step (scheduler.py) or deliver tokens (token_delivery.py).
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from hfjax_app.chat.engine.constraint import Constraint
from hfjax_app.chat.engine.counters import Counters
from hfjax_app.chat.engine.decode_policy import DecodePolicy
from hfjax_app.chat.engine.dispatched_call import DispatchedCall
from hfjax_app.chat.engine.draft_policy import DraftTracker
from hfjax_app.chat.engine.scheduler import DecodeStep, PrefillStep, Request, Scheduler
from hfjax_app.chat.engine.stats import EngineActivity, EngineStats
from hfjax_app.chat.engine.token_delivery import TokenDelivery
from hfjax_app.chat.engine.token_stream import Progress
from hfjax_app.chat.model.decode_state import NOT_A_NUMBER, DecodeOutput
from hfjax_app.chat.model.model_runner import ModelRunner
from hfjax_app.errors import EngineStopped, Overloaded, kind_and_line
from hfjax_app.limits import CHAT_QUEUE, RETRY_AFTER_S

MAX_FAILURES = 3  # in a row, without a success in between: then the engine stops


@dataclass(kw_only=True, eq=False)
class Handle:
    """The engine's data of a request."""

    deliver: Callable[[Progress], None]
    sampler: np.ndarray  # uint32 [words], sampler.packed
    top_logprobs: int | None
    length_reason: str
    constraint: Constraint | None = None
    arrived_at: float = 0.0  # by time.perf_counter
    draft_tracker: DraftTracker | None = None  # made when the request is first alone


class EngineLoop:
    """Owns the device: only its thread calls the runner's programs, in rounds. Requests are submitted under a lock.

    Args:
        runner: compiled before `start`.
        end_tokens: ids that end an answer.
        always_drafts: draft for every request that is alone, whether it pays or not.
    """

    def __init__(self, runner: ModelRunner, end_tokens: tuple[int, ...], *, always_drafts: bool = False):
        self.runner, self.end_tokens = runner, end_tokens
        self.scheduler = Scheduler(
            slots=runner.slots,
            prefill_chunks=runner.chunk_sizes,
            decode_chunk=runner.decode_chunk,
            positions_before_wrap=runner.positions_before_wrap,
            rollback=runner.rollback,
        )
        self.alive = False
        self._changed = threading.Condition()  # guards scheduler and alive; not held while the device computes
        self._trials: deque[tuple[Callable[[int], None], Future[None]]] = deque()
        self._calls: deque[DispatchedCall] = deque()  # dispatched, in the device's order; used by the thread only
        self._decode_policy = DecodePolicy(runner, always_drafts=always_drafts)
        self._read_at = 0.0  # time at which the latest call was read: it had ended by then
        self._failures = 0
        self._cause: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._counters = Counters()
        self._delivery = TokenDelivery(self.scheduler, runner, end_tokens, self._counters)

    @property
    def started(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        self.alive = True
        self.runner.between_calls = self._between_calls
        self.scheduler.prefill_chunks = self.runner.prefill_chunks
        self._thread = threading.Thread(target=self._run, name="chat-engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; requests that still wait get EngineStopped. May be called twice."""
        with self._changed:
            self.alive = False
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    @property
    def stop_reason(self) -> str:
        """Why the engine does not run."""
        if self._cause is None:
            return "it was stopped, or never started"
        return f"it failed {self._failures} times in a row, at last with {kind_and_line(self._cause)}"

    def submit(self, request: Request) -> None:
        """Put a request into the queue.

        Raises:
            EngineStopped: the thread is not running.
            Overloaded: the queue is full.
        """
        with self._changed:
            if not self.alive:
                raise EngineStopped(f"the chat engine is not running: {self.stop_reason}") from self._cause
            if len(self.scheduler.waiting) >= CHAT_QUEUE:
                busy = f"the chat engine is busy: {CHAT_QUEUE} requests are waiting; try again later"
                raise Overloaded(busy, RETRY_AFTER_S)
            request.handle.arrived_at = time.perf_counter()
            self.scheduler.submit(request)
            self._counters.requests += 1
            self._changed.notify()

    def place(self, request: Request) -> int:
        if request.slot is not None:  # without the lock: event loops ask with every token
            return 0
        with self._changed:
            return self.scheduler.place(request)

    def stats(self) -> EngineStats:
        with self._changed:
            return self._counters.stats(self.scheduler)

    def activity(self) -> EngineActivity:
        with self._changed:
            return self._counters.activity(self.scheduler, time.perf_counter())

    def _between_calls(self, trial: Callable[[int], None]) -> None:
        """Run a function in the engine's thread when a slot is free, with that slot's index; what it held is lost.

        Raises:
            EngineStopped: the engine stopped before.
            Exception: the function's.
        """
        done: Future[None] = Future()
        with self._changed:
            if not self.alive:
                raise EngineStopped(f"the chat engine is not running: {self.stop_reason}")
            self._trials.append((trial, done))
            self._changed.notify()
        done.result()

    def _run(self) -> None:
        try:
            while self.alive:
                if not self.step():
                    with self._changed:
                        for request in filter(None, [*self.scheduler.running]):
                            self._delivery.fail(request, AssertionError("no call is left that would make its tokens"))
                        self._changed.wait_for(lambda: not self.scheduler.idle or self._trials or not self.alive)
        except Exception as error:
            self._cause = error
        finally:
            self._fail_everyone()

    def step(self) -> bool:
        """One round: admit requests, schedule, run, hand out tokens.

        The newest call keeps running while the tokens of the calls before it are handed out, so that the device does
        not wait for the host. It does not change slots that turn out to have finished: on the device they have no
        tokens left to make. The next request in such a slot is prefilled by a later call.

        Constrained requests, each of which gets a token a round, have a call of their own. It goes first, so that it is
        read in the same round, while the device makes the tokens of the others.

        Returns:
            False if there was no work.
        """
        self._run_trial()
        self._take_in()
        constrained = self._run_decode(self._schedule_constrained())
        prefilled = self._run_prefill(self._schedule_prefill())
        decoded = self._run_decode(self._schedule_decode())
        return self._hand_out_calls(leave_newest=constrained or prefilled or decoded)

    def _run_trial(self) -> None:
        """Run a program that is to join. Before requests are admitted, so that a slot is free now and then."""
        with self._changed:
            slot = next((i for i, request in enumerate(self.scheduler.running) if request is None), None)
            if slot is None or not self._trials:
                return
        self._hand_out_calls(leave_newest=False)  # may end the engine, which tells all that are in the queue
        with self._changed:
            trial, done = self._trials.popleft()
            self.scheduler.slots.forget(slot)
        try:
            trial(slot)
        except Exception as error:
            if not self.runner.intact:
                with self._changed:
                    self._lose_cache(error)
            done.set_exception(error)
        else:
            with self._changed:
                self.scheduler.prefill_chunks = self.runner.prefill_chunks
            done.set_result(None)

    def _take_in(self) -> None:
        """Release cancelled requests, and give free slots to the requests that have waited longest."""
        with self._changed:
            leaving = [r for r in (*self.scheduler.waiting, *self.scheduler.running) if r is not None and r.cancelled]
        if any(request.slot is not None for request in leaving):
            # Before another request gets the slot, the output must show whether it holds NaNs.
            self._hand_out_calls(leave_newest=False)
        with self._changed:
            for request in leaving:
                if not request.released:
                    self._delivery.finish(request, Progress(finish_reason="cancelled"))
            self.scheduler.admit()

    def _schedule_prefill(self) -> PrefillStep | None:
        with self._changed:
            return self.scheduler.next_prefill()

    def _schedule_constrained(self) -> DecodeStep | None:
        with self._changed:
            return self.scheduler.next_constrained()

    def _schedule_decode(self) -> DecodeStep | None:
        with self._changed:
            return self._decode_policy.next_step(self.scheduler)

    def _run_prefill(self, step: PrefillStep | None) -> bool:
        """Dispatch a chunk of a prompt; False if there was none."""
        if step is not None:
            self._attempt(self._prefill, step, [step.request])
        return step is not None

    def _run_decode(self, step: DecodeStep | None) -> bool:
        """Dispatch some tokens of each answer; False if there were none to make."""
        if step is not None:
            self._attempt(self._decode, step, list(step.requests))
        return step is not None

    def _hand_out_calls(self, *, leave_newest: bool) -> bool:
        """Wait for calls in order and hand out their tokens; False if there was no call, not even the newest."""
        worked = leave_newest or bool(self._calls)
        while len(self._calls) > leave_newest:
            self._attempt(self._collect, self._calls.popleft(), None)
        return worked

    def _attempt(self, step: Callable[[Any], None], argument: Any, concerned: list[Request] | None) -> None:
        """Run a step. If it fails, fail the requests concerned, with its cause, and continue.

        Args:
            step: the function to run.
            argument: its argument.
            concerned: the requests of the step; None: all that have a slot, because the cache may be invalid.

        Raises:
            Exception: the step's, if it was the last of MAX_FAILURES in a row.
        """
        try:
            step(argument)
        except Exception as error:
            self._failures += 1
            if self._failures >= MAX_FAILURES:
                raise
            with self._changed:
                if concerned is None or not self.runner.intact:
                    self._lose_cache(error)
                    return
                for request in concerned:
                    self._delivery.fail(request, error)

    def _lose_cache(self, cause: Exception) -> None:
        """Begin with an empty cache; all requests that have a slot fail. Call with the lock held."""
        self._calls.clear()
        self.runner.reset()
        self.scheduler.slots.forget_all()
        for request in list(filter(None, self.scheduler.running)):
            self._delivery.fail(request, cause)

    def _prefill(self, step: PrefillStep) -> None:
        request = step.request
        if step.source is not None:
            self.runner.copy(step.source, step.slot, step.start, step.written)
        if step.start == request.reused:
            self._counters.reused_tokens += request.reused
        if step.picture is None:
            output = self._prefill_text(step)
        else:
            output = self.runner.write_picture(step.slot, step.picture, step.start)
        self._counters.prefill_calls += 1
        self._dispatched(output, {request: 0})
        with self._changed:
            self._counters.prefilled(step.stop - step.start, time.perf_counter())
            self.scheduler.prefilled(step)

    def _prefill_text(self, step: PrefillStep) -> DecodeOutput:
        request = step.request
        chunk = np.zeros(step.size, np.int32)
        chunk[: step.stop - step.start] = request.prompt[step.start : step.stop]
        max_tokens = request.max_tokens if step.is_last else 0
        constraint = request.handle.constraint if step.is_last else None
        return self.runner.prefill(
            step.slot,
            chunk,
            step.start,
            step.stop - step.start,
            max_tokens,
            request.handle.sampler,
            None if constraint is None else constraint.allowed,
        )

    def _decode(self, step: DecodeStep) -> None:
        if step.draft:
            output, columns = self.runner.speculate(step.slots[0], step.length, step.steps, step.tokens)
        else:
            allowed = [request.handle.constraint.allowed for request in step.requests] if step.constrained else ()
            output, columns = self.runner.decode(step.slots, step.length, step.steps, allowed)
        self._counters.decode_calls += 1
        self._dispatched(output, dict(zip(step.requests, columns, strict=True)), step)
        with self._changed:
            self.scheduler.decoded(step)

    def _dispatched(self, output: DecodeOutput, columns: dict[Request, int], step: DecodeStep | None = None) -> None:
        output.tokens.copy_to_host_async()  # starts as soon as they are made
        now = time.perf_counter()
        self._calls.append(DispatchedCall(output=output, columns=columns, step=step, dispatched_at=now))

    def _collect(self, call: DispatchedCall) -> None:
        """Wait for a call and hand out its tokens."""
        answers, drafts = call.read()
        self._failures = 0
        began, self._read_at = max(call.dispatched_at, self._read_at), time.perf_counter()
        if call.step is not None and not call.step.constrained:
            most = max(len(tokens) for _, tokens, _ in answers)
            self._decode_policy.observe(call.step, most, drafts, self._read_at - began)
        failures = {request: self._follow(request, tokens) for request, tokens, _ in answers if request.constrained}
        with self._changed:
            for request, tokens, logprobs in answers:
                self._delivery.hand_out(
                    request, tokens, logprobs, drafts=drafts, failure=failures.get(request), now=self._read_at
                )
                if call.step is not None and drafts is not None:
                    self.scheduler.unschedule(request, call.step.tokens - len(tokens))

    def _follow(self, request: Request, tokens: tuple[int, ...]) -> Exception | None:
        """Tell a request's constraint its new tokens; returns why it can't go on. Takes time, so without the lock."""
        if request.cancelled or request.released:
            return None
        try:
            for token in tokens:
                if token != NOT_A_NUMBER and token not in self.end_tokens:
                    request.handle.constraint.accept(token)
        except Exception as error:
            return error
        return None

    def _fail_everyone(self) -> None:
        """Fail every request with the cause, and accept no more: the thread is ending."""
        with self._changed:
            self.alive = False
            for request in [*self.scheduler.waiting, *filter(None, self.scheduler.running)]:
                error = EngineStopped(f"the chat engine stopped: {self.stop_reason}")
                error.__cause__ = self._cause
                self._delivery.finish(request, Progress(error=error))
            for _, done in self._trials:
                done.set_exception(EngineStopped(f"the chat engine stopped: {self.stop_reason}"))
