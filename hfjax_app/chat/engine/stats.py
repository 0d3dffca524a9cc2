"""What the chat engine says of itself."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EngineStats:
    """A moment's view of the engine. Counters count from its start."""

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
