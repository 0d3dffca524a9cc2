"""The engine's thread, which owns the device: in rounds of schedule, run, deliver it makes the tokens of all requests.

The way of a request. `ChatEngine.submit` (llm_engine.py) checks it in its client's thread and puts it into the queue of
the scheduler, under a lock that is never held while the device computes. Then the thread does these in each round:

1. It takes in: cancelled requests give up their slots, and requests whose turn it is get them. A slot is a conversation
   in the device's cache; `PrefixCache` chooses the one that holds the beginning of the prompt.
2. It schedules and runs (scheduler.py says what): one chunk of the oldest unfinished prompt, with whose last one the
   device samples the answer's first token, and one decode call that makes some tokens of every running answer.
   decode_calls.py says how many, and whether a request that is alone drafts. Constrained answers, whose next token
   depends on all before, get one token a round by a call of their own, which goes first.
3. It delivers. A call is dispatched and runs while Python goes on, so the newest one is left to run, and the tokens of
   those before it are read and handed to the clients' callbacks: the device does not wait for the host. What it makes
   for a slot that turns out to have finished is nothing: on the device that slot has no tokens left to make. The last
   progress of a request frees its slot; what the slot holds stays recorded, for a follow-up to reuse.

A call that fails costs the requests that it was for, or all that have a slot where it has lost the cache; logits that
are not numbers cost one request. After MAX_FAILURES in a row the thread ends, and everyone is told why. Programs that
are compiled while the engine serves join between two calls.
"""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from functools import partial

import jax
import numpy as np

from hfjax_app.chat.engine.decode_calls import DraftPolicy, DraftTracker, StepsPerCall
from hfjax_app.chat.engine.request import Progress, Request
from hfjax_app.chat.engine.scheduler import DecodeStep, PrefillStep, Scheduler
from hfjax_app.chat.engine.stats import Counters, EngineActivity, EngineStats, Throughput
from hfjax_app.chat.model.decode_loops import NOT_A_NUMBER, NOTHING, DecodeOutput, DraftCounts
from hfjax_app.chat.model.model_runner import ModelRunner
from hfjax_app.chat.model.slot_functions import PromptChunk
from hfjax_app.chat.sampling.logprobs import TokenLogprobs, token_logprobs
from hfjax_app.errors import ConstraintFailed, EngineStopped, HfjaxError, Overloaded, kind_and_line
from hfjax_app.limits import CHAT_QUEUE, RETRY_AFTER_S

MAX_FAILURES = 3  # in a row, without a success in between: then the engine stops
FIRST_TOKENS = 50  # answers whose time to the first token is remembered

# A request, its new token ids, and their log-probabilities if it asked for them.
Answer = tuple[Request, tuple[int, ...], tuple[TokenLogprobs, ...]]


@dataclass(frozen=True, kw_only=True, eq=False)
class DispatchedCall:
    """A device call whose tokens have not been read yet.

    Args:
        output: on the device.
        columns: of each request in the output.
        step: what the call is for.
        dispatched_at: seconds, by time.perf_counter.
    """

    output: DecodeOutput
    columns: dict[Request, int]
    step: PrefillStep | DecodeStep
    dispatched_at: float

    def read(self) -> tuple[list[Answer], DraftCounts | None]:
        """Wait for the output: each request's new tokens, and the counts of a call that drafts."""
        wanted = any(request.top_logprobs is not None for request in self.columns)
        output = self.output
        tokens, logprobs, drafts, scores = jax.device_get(
            (output.tokens, output.logprobs if wanted else None, output.drafts, output.prompt)
        )
        if scores is not None and isinstance(self.step, PrefillStep):
            request, read = self.step.request, self.step.stop - self.step.start - self.step.is_last
            first = jax.tree.map(lambda leaf: leaf[:read], scores)
            request.scores += token_logprobs(first, request.prompt_logprobs or 0)
        answers = []
        for request, column in self.columns.items():
            made = tokens[:, column] != NOTHING
            ids, top = tuple(tokens[made, column].tolist()), request.top_logprobs
            chosen = jax.tree.map(lambda leaf, at=(made, column): leaf[at], logprobs)
            answers.append((request, ids, () if top is None else token_logprobs(chosen, top)))
        return answers, None if drafts is None else DraftCounts(*map(int, drafts))


class EngineLoop:
    """The thread and its state. Requests are submitted under a lock.

    Args:
        runner: compiled before `start`.
    """

    def __init__(self, runner: ModelRunner):
        self.runner = runner
        self.scheduler = Scheduler(
            slots=runner.slots,
            prefill_chunks=runner.chunk_sizes,
            decode_chunk=runner.decode_chunk,
            positions_before_wrap=runner.positions_before_wrap,
            rollback=runner.rollback,
            scored_chunk=runner.scored_chunk,
        )
        self.alive = False
        self._changed = threading.Condition()  # guards scheduler and alive; not held while the device computes
        self._trials: deque[tuple[Callable[[int], None], Future[None]]] = deque()
        self._calls: deque[DispatchedCall] = deque()  # dispatched, in the device's order; used by the thread only
        self._read_at = 0.0  # time at which the latest call was read: it had ended by then
        # Of each kind of decode call: its number of slots, and whether it drafts.
        self._steps_per_call: defaultdict[tuple[int, bool], StepsPerCall] = defaultdict(
            partial(StepsPerCall, runner.decode_chunk)
        )
        self._draft_policy = DraftPolicy()
        self._failures = 0
        self._cause: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._counters, self._throughput = Counters(), Throughput()
        self._first_token_s: deque[float] = deque(maxlen=FIRST_TOKENS)

    # From other threads

    @property
    def started(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        self.alive = True
        self.runner.between_calls = self._between_calls
        self.scheduler.prefill_chunks = self.runner.prefill_chunks
        self._thread = threading.Thread(target=self._run_rounds, name="chat-engine", daemon=True)
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
            request.arrived_at = time.perf_counter()
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
            slots, busy, waiting = len(self.scheduler.running), self.scheduler.busy, len(self.scheduler.waiting)
            return EngineStats(slots=slots, busy=busy, waiting=waiting, **asdict(self._counters))

    def activity(self) -> EngineActivity:
        with self._changed:
            return EngineActivity(
                stats=self.stats(),
                slots=self.scheduler.states(),
                rates=self._throughput.rates(time.perf_counter()),
                first_token_s=tuple(self._first_token_s),
            )

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

    # A round

    def _run_rounds(self) -> None:
        try:
            while self.alive:
                if not self.step():
                    with self._changed:
                        for request in filter(None, [*self.scheduler.running]):
                            self._fail(request, AssertionError("no call is left that would make its tokens"))
                        self._changed.wait_for(lambda: not self.scheduler.idle or self._trials or not self.alive)
        except Exception as error:
            self._cause = error
        finally:
            self._fail_everyone()

    def step(self) -> bool:
        """One round; False if there was no work."""
        self._run_trial()
        self._take_in()
        ran = False
        schedules: list[Callable[[], PrefillStep | DecodeStep | None]] = [
            self.scheduler.next_constrained,
            self.scheduler.next_prefill,
            self._next_decode,
        ]
        for schedule in schedules:
            with self._changed:
                step = schedule()
            if step is not None:
                ran = True
                self._attempt(partial(self._run, step), step.requests)
        return self._deliver(leave_newest=ran)

    def _run_trial(self) -> None:
        """Run a program that is to join. Before requests are admitted, so that a slot is free now and then."""
        with self._changed:
            slot = next((i for i, request in enumerate(self.scheduler.running) if request is None), None)
            if slot is None or not self._trials:
                return
        self._deliver(leave_newest=False)  # may end the engine, which tells all that are in the queue
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
            self._deliver(leave_newest=False)
        with self._changed:
            for request in leaving:
                if not request.released:
                    self._finish(request, Progress(finish_reason="cancelled"))
            self.scheduler.admit()

    # Schedule. With the lock held

    def _next_decode(self) -> DecodeStep | None:
        """Plain steps, or drafting rounds if only one answer runs and they are faster."""
        width = self.runner.width(len(self.scheduler.decoding))
        step = self.scheduler.next_decode(self._steps_per_call[width, False].steps)
        if step is not None and self._should_draft(step):
            step = self.scheduler.next_decode(self._steps_per_call[width, True].steps, self.runner.draft)
        return step

    def _should_draft(self, step: DecodeStep) -> bool:
        if len(step.requests) > 1 or not self.runner.programs.can_speculate(step.length):
            return False
        if self.runner.options.speculation == "always":
            return True
        [request] = step.requests
        if request.draft_tracker is None:
            request.draft_tracker = DraftTracker(request.prompt, self.runner.draft)
        request.draft_tracker.extend(request.answer)
        return self._draft_policy.should_draft(request.draft_tracker, self.runner.bucket(step.length))

    # Run

    def _run(self, step: PrefillStep | DecodeStep) -> None:
        """Dispatch a call."""
        if isinstance(step, PrefillStep) and step.sees:
            self._see(step)
            return
        output, columns = self._prefill(step) if isinstance(step, PrefillStep) else self._decode(step)
        output.tokens.copy_to_host_async()  # starts as soon as they are made
        now = time.perf_counter()
        placed = dict(zip(step.requests, columns, strict=True))
        self._calls.append(DispatchedCall(output=output, columns=placed, step=step, dispatched_at=now))
        with self._changed:
            if isinstance(step, PrefillStep):
                self._counters.prefill_calls += 1
                self._counters.prefilled_tokens += step.stop - step.start
                self._throughput.add(step.stop - step.start, now)
                self.scheduler.prefilled(step)
            else:
                self._counters.decode_calls += 1
                self.scheduler.decoded(step)

    def _see(self, step: PrefillStep) -> None:
        """Dispatch the vision tower on a picture. Nothing is read back: the call that writes it follows."""
        assert self.runner.vision is not None, "requests with pictures are refused without it"
        assert step.picture is not None
        self._copy_prefix(step)
        step.request.embeddings = self.runner.vision(step.picture)
        with self._changed:
            self.scheduler.prefilled(step)

    def _copy_prefix(self, step: PrefillStep) -> None:
        if step.source is not None:
            self.runner.copy(step.source, step.slot, step.start, step.written)

    def _prefill(self, step: PrefillStep) -> tuple[DecodeOutput, Sequence[int]]:
        request, count = step.request, step.stop - step.start
        self._copy_prefix(step)
        if step.start == request.reused:
            self._counters.reused_tokens += request.reused
        if step.picture is not None:
            own = None if request.positions is None else request.positions[:, step.start : step.stop]
            seen, request.embeddings = request.embeddings, None
            output = self.runner.write_picture(step.slot, step.picture, seen, step.start, own)
        else:
            tokens = np.zeros(step.size, np.int32)
            tokens[:count] = request.prompt[step.start : step.stop]
            max_tokens, constraint = (request.max_tokens, request.constraint) if step.is_last else (0, None)
            allowed = None if constraint is None else constraint.allowed
            shift = None if self.runner.shift is None else request.shift(step.start)
            chunk = PromptChunk.of(step.slot, tokens, step.start, count, max_tokens, request.sampler, shift)
            if request.prompt_logprobs is None:
                output = self.runner.prefill(chunk, allowed)
            else:
                targets = np.zeros(step.size, np.int32)
                after = request.prompt[step.start + 1 : step.stop + 1]
                targets[: len(after)] = after
                output = self.runner.score(chunk, targets, allowed)
        return output, (0,)

    def _decode(self, step: DecodeStep) -> tuple[DecodeOutput, Sequence[int]]:
        if step.draft:
            return self.runner.speculate(step.slots[0], step.length, step.steps, step.tokens)
        allowed = [request.constraint.allowed for request in step.requests if request.constraint is not None]
        return self.runner.decode(step.slots, step.length, step.steps, allowed)

    # Deliver

    def _deliver(self, *, leave_newest: bool) -> bool:
        """Wait for calls in order and hand out their tokens; False if there was no call, not even the newest."""
        worked = leave_newest or bool(self._calls)
        while len(self._calls) > leave_newest:
            self._attempt(partial(self._read, self._calls.popleft()), None)
        return worked

    def _read(self, call: DispatchedCall) -> None:
        """Wait for a call and hand out its tokens."""
        answers, drafts = call.read()
        step, self._failures = call.step, 0
        began, self._read_at = max(call.dispatched_at, self._read_at), time.perf_counter()
        if isinstance(step, DecodeStep) and not step.constrained:
            self._observe(step, max(len(tokens) for _, tokens, _ in answers), drafts, self._read_at - began)
        failures = {request: self._follow(request, tokens) for request, tokens, _ in answers}
        with self._changed:
            for request, tokens, logprobs in answers:
                self._hand_out(request, tokens, logprobs, drafts, failures[request])
                if isinstance(step, DecodeStep) and drafts is not None:
                    self.scheduler.unschedule(request, step.tokens - len(tokens))

    def _observe(self, step: DecodeStep, tokens: int, drafts: DraftCounts | None, seconds: float) -> None:
        """Record how long a decode call took for so many tokens in its longest column."""
        steps, drafted = (tokens, 0) if drafts is None else (drafts.rounds, drafts.drafted_rounds)
        self._steps_per_call[self.runner.width(len(step.requests)), drafts is not None].observe(steps, seconds)
        if len(step.requests) == 1:
            bucket = self.runner.bucket(step.length)
            self._draft_policy.observe(bucket, steps=steps, drafted=drafted, seconds=seconds)

    def _follow(self, request: Request, tokens: tuple[int, ...]) -> Exception | None:
        """Tell a request's constraint its new tokens; returns why it can't go on. Takes time, so without the lock."""
        if request.constraint is None or request.cancelled or request.released:
            return None
        try:
            for token in tokens:
                if token != NOT_A_NUMBER and token not in self.runner.end_tokens:
                    request.constraint.accept(token)
        except Exception as error:
            return error
        return None

    # Deliver, and failures. With the lock held

    def _hand_out(
        self,
        request: Request,
        tokens: tuple[int, ...],
        logprobs: tuple[TokenLogprobs, ...],
        drafts: DraftCounts | None,
        failure: Exception | None,
    ) -> None:
        """Deliver new tokens of a running request; release it with its last ones.

        Args:
            request: whose tokens they are.
            tokens, logprobs: the new ones.
            drafts: counts of a call that drafts; None: of another one.
            failure: why its constraint can't go on after these tokens; None: it can.
        """
        if NOT_A_NUMBER in tokens:  # also of a cancelled request: the next one in the slot must not meet the NaN
            if not request.released:
                self._fail(request, FloatingPointError("the model's logits are not numbers (NaN or infinite)"))
                assert request.slot is not None
                self.runner.clear(request.slot)
            return
        if request.cancelled or request.released:
            self._counters.wasted_tokens += len(tokens)
            return
        if failure is not None:
            self._fail(request, failure)
            return
        if is_first := bool(tokens) and not request.answer:
            self._first_token_s.append(self._read_at - request.arrived_at)
        request.answer.extend(tokens)
        reason = None
        if tokens and tokens[-1] in self.runner.end_tokens:
            tokens, logprobs, reason = tokens[:-1], logprobs[:-1], "stop"
        elif tokens and request.constraint is not None and request.constraint.is_complete:
            reason = "stop"
        elif len(request.answer) >= request.max_tokens:
            reason = request.length_reason
        drafted, accepted = (0, 0) if drafts is None else (drafts.drafted, drafts.accepted)
        self._counters.tokens += len(tokens)
        self._counters.drafted_tokens += drafted
        self._counters.accepted_tokens += accepted
        self._throughput.add(len(tokens), self._read_at)
        progress = Progress(
            tokens=tokens,
            logprobs=logprobs,
            prompt_logprobs=tuple(request.scores) if is_first and request.prompt_logprobs is not None else None,
            reused_tokens=request.reused,
            drafted_tokens=drafted,
            accepted_tokens=accepted,
            finish_reason=reason,
        )
        if reason is not None:
            self._finish(request, progress, exact=True)
        elif tokens:
            _call_back(request, progress)

    def _finish(self, request: Request, last: Progress, *, exact: bool = False) -> None:
        """Release a request and deliver its last progress. `exact`: every token made for it was read."""
        self.scheduler.release(request, exact=exact)
        _call_back(request, last)

    def _fail(self, request: Request, cause: Exception) -> None:
        """Release a request with an error. What its slot holds is forgotten: it may be wrong."""
        error: HfjaxError
        if isinstance(cause, ConstraintFailed):
            error = cause
        else:
            error = EngineStopped(f"the chat engine failed on this request, and goes on: {kind_and_line(cause)}")
            error.__cause__ = cause
        self._finish(request, Progress(error=error))
        if request.slot is not None:
            self.scheduler.slots.forget(request.slot)

    def _attempt(self, run: Callable[[], None], concerned: Sequence[Request] | None) -> None:
        """Run a part of a round. If it fails, fail the requests concerned, with its cause, and continue.

        Call without the lock.

        Args:
            run: the part.
            concerned: its requests; None: all that have a slot, because the cache may be invalid.

        Raises:
            Exception: the part's, if it was the last of MAX_FAILURES in a row.
        """
        try:
            run()
        except Exception as error:
            self._failures += 1
            if self._failures >= MAX_FAILURES:
                raise
            with self._changed:
                if concerned is None or not self.runner.intact:
                    self._lose_cache(error)
                    return
                for request in concerned:
                    self._fail(request, error)

    def _lose_cache(self, cause: Exception) -> None:
        """Begin with an empty cache; all requests that have a slot fail."""
        self._calls.clear()
        self.runner.reset()
        self.scheduler.slots.forget_all()
        for request in list(filter(None, self.scheduler.running)):
            self._fail(request, cause)

    def _fail_everyone(self) -> None:
        """Fail every request with the cause, and accept no more: the thread is ending."""
        with self._changed:
            self.alive = False
            for request in [*self.scheduler.waiting, *filter(None, self.scheduler.running)]:
                error = EngineStopped(f"the chat engine stopped: {self.stop_reason}")
                error.__cause__ = self._cause
                self._finish(request, Progress(error=error))
            for _, done in self._trials:
                done.set_exception(EngineStopped(f"the chat engine stopped: {self.stop_reason}"))


def _call_back(request: Request, progress: Progress) -> None:
    """Call the client's callback. If it raises, this request is cancelled; the others are not affected."""
    try:
        request.deliver(progress)
    except Exception:
        request.cancelled = True
