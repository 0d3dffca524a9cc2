"""Figures of the chat engine, for /health, metrics, the page and benchmarks. Does not count: the engine loop does.

They say how many, never what: no token, text or client is in them.
"""

from dataclasses import dataclass


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
            last; see `throughput.py`.
        first_token_s: seconds from a request's arrival to its first token, of the latest answers, the newest last.
    """

    stats: EngineStats
    slots: tuple[SlotState, ...]
    rates: tuple[float, ...]
    first_token_s: tuple[float, ...]
