"""The engine's side of an answer: new tokens go to its client; the last ones, or an error, end it and free its slot.

Does not read the tokens from the device: engine_loop.py does.
"""

from hfjax_app.chat.engine.counters import Counters
from hfjax_app.chat.engine.scheduler import Request, Scheduler
from hfjax_app.chat.engine.token_stream import Progress
from hfjax_app.chat.model.decode_state import NOT_A_NUMBER, DraftCounts
from hfjax_app.chat.model.model_runner import ModelRunner
from hfjax_app.chat.sampling.logprobs import TokenLogprobs
from hfjax_app.errors import ConstraintFailed, EngineStopped, HfjaxError, kind_and_line


class TokenDelivery:
    """Delivers to clients, and releases their requests. Call each method with the scheduler's lock held.

    Args:
        scheduler: holds the requests.
        runner: clears slots that hold a NaN.
        end_tokens: ids that end an answer.
        counters: of the engine.
    """

    def __init__(self, scheduler: Scheduler, runner: ModelRunner, end_tokens: tuple[int, ...], counters: Counters):
        self._scheduler, self._runner, self._end_tokens = scheduler, runner, end_tokens
        self._counters = counters

    def hand_out(
        self,
        request: Request,
        tokens: tuple[int, ...],
        logprobs: tuple[TokenLogprobs, ...],
        *,
        drafts: DraftCounts | None,
        failure: Exception | None,
        now: float,
    ) -> None:
        """Deliver new tokens of a running request; release it with its last ones.

        Args:
            request: whose tokens they are.
            tokens, logprobs: the new ones.
            drafts: counts of a call that drafts; None: of another one.
            failure: why its constraint can't go on after these tokens; None: it can.
            now: seconds, by time.perf_counter, when they were read.
        """
        if NOT_A_NUMBER in tokens:  # also of a cancelled request: the next one in the slot must not meet the NaN
            if not request.released:
                self.fail(request, FloatingPointError("the model's logits are not numbers (NaN or infinite)"))
                assert request.slot is not None
                self._runner.clear(request.slot)
            return
        if request.cancelled or request.released:
            self._counters.wasted_tokens += len(tokens)
            return
        if failure is not None:
            self.fail(request, failure)
            return
        if tokens and not request.answer:
            self._counters.first_token_s.append(now - request.handle.arrived_at)
        request.answer.extend(tokens)
        reason, constraint = None, request.handle.constraint
        if tokens and tokens[-1] in self._end_tokens:
            tokens, logprobs, reason = tokens[:-1], logprobs[:-1], "stop"
        elif tokens and constraint is not None and constraint.is_complete:
            reason = "stop"
        elif len(request.answer) >= request.max_tokens:
            reason = request.handle.length_reason
        drafted, accepted = (0, 0) if drafts is None else (drafts.drafted, drafts.accepted)
        self._counters.made(len(tokens), now, drafted=drafted, accepted=accepted)
        progress = Progress(
            tokens=tokens,
            logprobs=logprobs,
            reused_tokens=request.reused,
            drafted_tokens=drafted,
            accepted_tokens=accepted,
            finish_reason=reason,
        )
        if reason is not None:
            self.finish(request, progress, exact=True)
        elif tokens:
            _deliver(request, progress)

    def finish(self, request: Request, last: Progress, *, exact: bool = False) -> None:
        """Release a request and deliver its last progress. `exact`: every token made for it was read."""
        self._scheduler.release(request, exact=exact)
        _deliver(request, last)

    def fail(self, request: Request, cause: Exception) -> None:
        """Release a request with an error. What its slot holds is forgotten: it may be wrong."""
        error: HfjaxError
        if isinstance(cause, ConstraintFailed):
            error = cause
        else:
            error = EngineStopped(f"the chat engine failed on this request, and goes on: {kind_and_line(cause)}")
            error.__cause__ = cause
        self.finish(request, Progress(error=error))
        if request.slot is not None:
            self._scheduler.slots.forget(request.slot)


def _deliver(request: Request, progress: Progress) -> None:
    """Call the client's callback. If it raises, this request is cancelled; the others are not affected."""
    try:
        request.handle.deliver(progress)
    except Exception:
        request.cancelled = True
