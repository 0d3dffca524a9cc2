"""What requests use: tokens and times, counted for each client's quota, for metrics and for the log.

Quotas are kept in memory: a restart begins anew. Metrics of the models themselves are in `hfjax_app/server/metrics.py`.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import prometheus_client as prometheus

from hfjax_app.client import Client
from hfjax_app.errors import Overloaded

_DAY_S = 86_400
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5)


@dataclass(kw_only=True)
class RequestUsage:
    """What one request has used."""

    prompt_tokens: int = 0
    tokens: int = 0


_request: ContextVar[RequestUsage | None] = ContextVar("request_usage", default=None)


@contextmanager
def request_usage() -> Iterator[RequestUsage]:
    """Collects what the block's request uses."""
    usage = RequestUsage()
    token = _request.set(usage)
    try:
        yield usage
    finally:
        _request.reset(token)


class Usage:
    """Counts for all clients.

    Attributes:
        registry: its metrics; others may be added.
    """

    def __init__(self) -> None:
        self._day = 0
        self._used: Counter[str] = Counter()
        self._counting = threading.Lock()
        self.registry = prometheus.CollectorRegistry()
        self._first_token = prometheus.Histogram(
            "hfjax_time_to_first_token_seconds",
            "From a chat request's arrival in the engine to its first token",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._per_token = prometheus.Histogram(
            "hfjax_time_per_output_token_seconds",
            "Between the tokens of an answer, its mean",
            buckets=_TOKEN_SECONDS,
            registry=self.registry,
        )
        self._in_line = prometheus.Histogram(
            "hfjax_time_in_line_seconds",
            "From a request's admission to its start, by line; slot: the engine's own",
            ["line"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._prompt_tokens = prometheus.Counter(
            "hfjax_prompt_tokens", "Tokens of prompts, those from the cache included", registry=self.registry
        )

    def add_wait(self, line: str, seconds: float) -> None:
        self._in_line.labels(line).observe(seconds)

    def began(self, client: Client, prompt_tokens: int, seconds: float) -> None:
        """An answer has its first token."""
        self._first_token.observe(seconds)
        self._prompt_tokens.inc(prompt_tokens)
        self._add(client, prompt_tokens)
        if (request := _request.get()) is not None:
            request.prompt_tokens += prompt_tokens

    def add_tokens(self, client: Client, tokens: int) -> None:
        """An answer has so many tokens more."""
        self._add(client, tokens)
        if (request := _request.get()) is not None:
            request.tokens += tokens

    def ended(self, tokens_per_s: float | None) -> None:
        """An answer has ended, whole or cancelled."""
        if tokens_per_s:
            self._per_token.observe(1 / tokens_per_s)

    def check(self, client: Client) -> None:
        """Refuse a client whose day's tokens are used up.

        Raises:
            Overloaded: try again on the next day (UTC).
        """
        if client.daily_tokens is None:
            return
        with self._counting:
            self._begin_day()
            used = self._used[client.id]
        if used >= client.daily_tokens:
            left = _DAY_S - int(time.time()) % _DAY_S
            raise Overloaded(f"{used:,} tokens today: this key's quota is {client.daily_tokens:,} a day (UTC)", left)

    def _add(self, client: Client, tokens: int) -> None:
        if client.daily_tokens is None:
            return
        with self._counting:
            self._begin_day()
            self._used[client.id] += tokens

    def _begin_day(self) -> None:
        day = int(time.time()) // _DAY_S
        if day != self._day:
            self._day = day
            self._used.clear()
