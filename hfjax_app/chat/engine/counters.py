"""What the engine loop counts. Plain Python: no jax, no threads, no clock."""

from collections import deque
from dataclasses import dataclass, field

from hfjax_app.chat.engine.scheduler import Scheduler
from hfjax_app.chat.engine.stats import EngineActivity, EngineStats
from hfjax_app.chat.engine.throughput import Throughput

FIRST_TOKENS = 50  # answers whose time to the first token is remembered


@dataclass(kw_only=True)
class Counters:
    """Counts since the engine began; the fields are those of EngineStats and EngineActivity."""

    requests: int = 0
    tokens: int = 0
    prefilled_tokens: int = 0
    reused_tokens: int = 0
    wasted_tokens: int = 0
    prefill_calls: int = 0
    decode_calls: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    first_token_s: deque[float] = field(default_factory=lambda: deque(maxlen=FIRST_TOKENS))
    _throughput: Throughput = field(default_factory=Throughput)

    def prefilled(self, tokens: int, now: float) -> None:
        """So many tokens of a prompt were computed."""
        self.prefilled_tokens += tokens
        self._throughput.add(tokens, now)

    def made(self, tokens: int, now: float, *, drafted: int, accepted: int) -> None:
        """So many tokens of an answer were handed out, with the help of drafts."""
        self.tokens += tokens
        self.drafted_tokens += drafted
        self.accepted_tokens += accepted
        self._throughput.add(tokens, now)

    def stats(self, scheduler: Scheduler) -> EngineStats:
        """With the scheduler's state; call with its lock held."""
        return EngineStats(
            slots=len(scheduler.running),
            busy=scheduler.busy,
            waiting=len(scheduler.waiting),
            requests=self.requests,
            tokens=self.tokens,
            prefilled_tokens=self.prefilled_tokens,
            reused_tokens=self.reused_tokens,
            wasted_tokens=self.wasted_tokens,
            prefill_calls=self.prefill_calls,
            decode_calls=self.decode_calls,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
        )

    def activity(self, scheduler: Scheduler, now: float) -> EngineActivity:
        """As `stats`, with what each slot does and the rates up to `now`."""
        return EngineActivity(
            stats=self.stats(scheduler),
            slots=scheduler.states(),
            rates=self._throughput.rates(now),
            first_token_s=tuple(self.first_token_s),
        )
