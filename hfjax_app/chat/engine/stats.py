"""Figures of the chat engine, for /health and benchmarks. Does not count: the engine loop does."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EngineStats:
    """The state of the engine at one moment. Counters start with the engine."""

    slots: int
    busy: int
    waiting: int
    requests: int
    tokens: int
    reused_tokens: int
    wasted_tokens: int
    prefill_calls: int
    decode_calls: int
    drafted_tokens: int
    accepted_tokens: int
