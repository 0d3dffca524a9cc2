"""Figures of the chat engine, for /health, metrics, the page and benchmarks, and the counters that they come from.

They say how many, never what: no token, text or client is in them. Plain Python: no threads, no clock.
"""

from dataclasses import dataclass

PERIOD_S = 5
PERIODS = 60  # five minutes


@dataclass(kw_only=True)
class Counters:
    """Counts since the engine began; the fields are those of EngineStats."""

    requests: int = 0
    tokens: int = 0
    prefilled_tokens: int = 0
    reused_tokens: int = 0
    wasted_tokens: int = 0
    prefill_calls: int = 0
    decode_calls: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class EngineStats:
    """The state of the engine at one moment. Counters start with the engine."""

    slots: int
    busy: int
    waiting: int
    requests: int
    tokens: int
    prefilled_tokens: int
    reused_tokens: int
    wasted_tokens: int
    prefill_calls: int
    decode_calls: int
    drafted_tokens: int
    accepted_tokens: int


@dataclass(frozen=True, kw_only=True)
class SlotState:
    """One slot at one moment, in tokens.

    Attributes:
        doing: "free", "prefill" or "decode".
        reused: of the prompt, that were in the cache before; of a free slot, those that it keeps for a follow-up.
        prefilled: of the prompt, that were computed for this request.
        prompt: of the whole prompt.
        made: of the answer.
    """

    doing: str
    reused: int
    prefilled: int = 0
    prompt: int = 0
    made: int = 0


@dataclass(frozen=True, kw_only=True)
class EngineActivity:
    """What the engine does now and has done in the last minutes.

    Attributes:
        stats: the counters.
        slots: each of them, in order.
        rates: tokens a second, prefilled and made ones of all requests together, over the last minutes, the newest
            last; see `Throughput`.
        first_token_s: seconds from a request's arrival to its first token, of the latest answers, the newest last.
    """

    stats: EngineStats
    slots: tuple[SlotState, ...]
    rates: tuple[float, ...]
    first_token_s: tuple[float, ...]


class Throughput:
    """Tokens a second over the last minutes: adds them up second by second; costs nothing while there are none."""

    def __init__(self) -> None:
        self._tokens: dict[int, int] = {}  # by whole seconds

    def add(self, tokens: int, now: float) -> None:
        """So many tokens at the time `now`, in seconds."""
        second = int(now)
        self._tokens[second] = self._tokens.get(second, 0) + tokens
        if len(self._tokens) > 2 * PERIODS * PERIOD_S:
            first = second - PERIODS * PERIOD_S
            self._tokens = {at: count for at, count in self._tokens.items() if at >= first}

    def rates(self, now: float) -> tuple[float, ...]:
        """Tokens a second in each of the last PERIODS periods of PERIOD_S seconds; the last one ends just now."""
        end = int(now)  # the present second is not over, so it does not count
        return tuple(
            sum(self._tokens.get(end - PERIOD_S * ago - i, 0) for i in range(1, PERIOD_S + 1)) / PERIOD_S
            for ago in range(PERIODS - 1, -1, -1)
        )
