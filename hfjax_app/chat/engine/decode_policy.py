"""How the next decode call is made, decided from the times of earlier calls: its steps, and whether it drafts.

Brings together what steps_per_call.py and draft_policy.py decide. Does not choose the requests: scheduler.py does.
"""

from collections import defaultdict

from hfjax_app.chat.engine.draft_policy import DraftPolicy, DraftTracker
from hfjax_app.chat.engine.scheduler import DecodeStep, Scheduler
from hfjax_app.chat.engine.steps_per_call import StepsPerCall
from hfjax_app.chat.model.decode_state import DraftCounts
from hfjax_app.chat.model.model_runner import ModelRunner

_Kind = tuple[int, bool]  # of a decode call: its number of slots, and whether it drafts


class DecodePolicy:
    """Keeps the times of each kind of call.

    Args:
        runner: has the buckets of slots and lengths.
        always_drafts: draft for every request that is alone, whether it pays or not.
    """

    def __init__(self, runner: ModelRunner, *, always_drafts: bool = False):
        self._runner, self._always_drafts = runner, always_drafts
        self._steps_per_call: defaultdict[_Kind, StepsPerCall] = defaultdict(lambda: StepsPerCall(runner.decode_chunk))
        self._draft_policy = DraftPolicy()

    def next_step(self, scheduler: Scheduler) -> DecodeStep | None:
        """Plain steps, or drafting rounds if only one answer runs and they are faster.

        Call with the scheduler's lock held.
        """
        width = self._runner.width(len(scheduler.decoding))
        step = scheduler.next_decode(self._steps_per_call[width, False].steps)
        if step is not None and self._should_draft(step):
            step = scheduler.next_decode(self._steps_per_call[width, True].steps, self._runner.draft)
        return step

    def observe(self, step: DecodeStep, tokens: int, drafts: DraftCounts | None, seconds: float) -> None:
        """Record how long a decode call took for so many tokens in its longest column."""
        steps, drafted = (tokens, 0) if drafts is None else (drafts.rounds, drafts.drafted_rounds)
        self._steps_per_call[self._runner.width(len(step.requests)), drafts is not None].observe(steps, seconds)
        if len(step.requests) == 1:
            bucket = self._runner.bucket(step.length)
            self._draft_policy.observe(bucket, steps=steps, drafted=drafted, seconds=seconds)

    def _should_draft(self, step: DecodeStep) -> bool:
        """Whether drafting rounds are better for this step."""
        if len(step.requests) > 1 or not self._runner.programs.can_speculate(step.length):
            return False
        [request] = step.requests
        if self._always_drafts:
            return True
        if request.handle.draft_tracker is None:
            request.handle.draft_tracker = DraftTracker(request.prompt, self._runner.draft)
        request.handle.draft_tracker.extend(request.answer)
        return self._draft_policy.should_draft(request.handle.draft_tracker, self._runner.bucket(step.length))
