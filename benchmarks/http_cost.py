"""What a request and a streamed event cost the event loop, where all clients wait for each other.

`python -m benchmarks.serving --cost` starts the app with its embedded chat model and asks /v1/chat/completions, one
request after the other; /live and /tokenize show how much of a request is the web server's and the door's. The loop
runs on the server's main thread; the kernel counts the processor time of each thread (the first number of
/proc/PID/task/PID/schedstat, nanoseconds), so waiting for the engine or for another process is not in these figures.
"""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from benchmarks.http_peers import free_port, served, wait_for_all_programs
from benchmarks.serving import QUESTIONS

T = TypeVar("T")


@dataclass(frozen=True)
class LoopTime:
    """The processor time of a process's main thread."""

    process: int

    def by(self, work: Callable[[], T], idle: float) -> tuple[float, T]:
        """Seconds that some work took, less `idle` for each second of the clock, and what the work returns."""
        before, began = self._so_far(), time.monotonic()
        result = work()
        return self._so_far() - before - idle * (time.monotonic() - began), result

    def _so_far(self) -> float:
        stat = Path(f"/proc/{self.process}/task/{self.process}/schedstat").read_text()
        return int(stat.split()[0]) / 1e9


def measure(rounds: int = 5, requests: int = 100, streams: int = 20, tokens: int = 128) -> dict[str, Any]:
    """Milliseconds of the event loop; medians of the rounds.

    Args:
        rounds: of all measurements.
        requests: of one token, not streamed, in each round.
        streams: in each round.
        tokens: the most of a stream.
    """
    nothing = "/no/such/model"
    settings = {"HFJAX_SENTIMENT_MODEL": nothing, "HFJAX_IMAGE_MODEL": nothing}
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "hfjax_app", "serve", "--port", str(port)]
    with served(command, settings, url, "/ready/chat") as process, httpx.Client(base_url=url, timeout=60) as client:
        wait_for_all_programs(url)
        used = LoopTime(process)
        for number in range(20):
            tokenized(client, number)
            whole(client, number)
            stream(client, number, tokens)
        found: list[dict[str, float]] = []
        for _ in range(rounds):
            idle = used.by(lambda: time.sleep(2), 0)[0] / 2
            floor, _ = used.by(lambda: [client.get("/live") for _ in range(requests)], idle)
            tokenize, _ = used.by(lambda: [tokenized(client, number) for number in range(requests)], idle)
            request, _ = used.by(lambda: [whole(client, number) for number in range(requests)], idle)
            streamed, events = used.by(lambda: [stream(client, number, tokens) for number in range(streams)], idle)
            found.append(
                {
                    "live_ms": floor / requests * 1e3,
                    "tokenize_ms": tokenize / requests * 1e3,
                    "request_ms": request / requests * 1e3,
                    "event_ms": (streamed - request / requests * streams) / sum(events) * 1e3,
                    "idle_ms_per_s": idle * 1e3,
                }
            )
            print(found[-1], flush=True)
    return {name: statistics.median(each[name] for each in found) for name in found[0]}


def tokenized(client: httpx.Client, number: int) -> None:
    """One request that the door, FastAPI and pydantic see as a completion, and no engine."""
    client.post("/tokenize", json={"prompt": QUESTIONS[number % len(QUESTIONS)]}).raise_for_status()


def whole(client: httpx.Client, number: int) -> None:
    """One request of one token."""
    client.post("/v1/chat/completions", json=_body(number, 1)).raise_for_status()


def stream(client: httpx.Client, number: int, tokens: int) -> int:
    """One stream; returns the number of its events."""
    with client.stream("POST", "/v1/chat/completions", json=_body(number, tokens) | {"stream": True}) as answer:
        answer.raise_for_status()
        return sum(line.startswith("data: ") for line in answer.iter_lines())


def _body(number: int, tokens: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": QUESTIONS[number % len(QUESTIONS)]}]
    return {"messages": messages, "max_tokens": tokens, "temperature": 0}
