"""The door under overload: what clients of a running studio see at four and twenty times what its slots can serve.

`python -m benchmarks.serving --url http://127.0.0.1:7860` asks the chat through the Gradio API, each client from an
address of its own (127.0.1.1 ...), so start the studio on this machine. First one client for each slot measures the
unloaded speed of a stream. Then so many times as many clients ask without a pause, for some seconds, while another one
asks /live. Reported for each load: tokens a second of an accepted stream after its first token, its time to the first
token, the time of a rejection (429) and of /live. `--peers` compares with llama.cpp's server instead, see
`http_peers.py`, and `--cost` measures the event loop, see `http_cost.py`. The last line of output is JSON.
"""

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks.hardware import describe

# In a process of its own: the clients' threads would delay it.
WATCH = """
import httpx, json, sys, time
client, seconds, ends = httpx.Client(timeout=120), [], time.monotonic() + float(sys.argv[2])
while time.monotonic() < ends:
    began = time.perf_counter()
    client.get(sys.argv[1])
    seconds.append(time.perf_counter() - began)
    time.sleep(0.1)
print(json.dumps(seconds))
"""
QUESTIONS = ("Tell me a story about a fox.", "What is JAX?", "Tell me about the sea.", "My name is Ada. Who are you?")


@dataclass
class Seen:
    """What the clients of one load have seen; times in seconds."""

    speeds: list[float] = field(default_factory=list)  # tokens a second
    first_tokens: list[float] = field(default_factory=list)
    rejections: list[float] = field(default_factory=list)
    live: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def client_at(number: int) -> httpx.Client:
    """A client with its own address of the loopback network."""
    address = f"127.0.{1 + number // 250}.{1 + number % 250}"
    return httpx.Client(transport=httpx.HTTPTransport(local_address=address), timeout=120)


def ask(client: httpx.Client, url: str, number: int, tokens: int, seen: Seen) -> None:
    """One request, to the end of its stream."""
    began = time.perf_counter()
    messages = [{"role": "user", "content": QUESTIONS[number % len(QUESTIONS)]}]
    joined = client.post(f"{url}/gradio_api/call/chat", json={"data": [messages, "", tokens, 1.0]})
    if joined.status_code == 429:
        seen.rejections.append(time.perf_counter() - began)
        time.sleep(0.5)
        return
    if joined.status_code != 200:
        seen.faults.append(f"{joined.status_code} {joined.text[:200]}")
        return
    last: dict[str, Any] = {}
    with client.stream("GET", f"{url}/gradio_api/call/chat/{joined.json()['event_id']}") as stream:
        for line in stream.iter_lines():
            if line.startswith("data: [{"):
                last = json.loads(line.removeprefix("data: "))[0]
    if last.get("finish_reason") is None:
        seen.faults.append(f"a stream ended without its reason: {last}")
        return
    seen.first_tokens.append(last["ttft_s"])
    if last["tokens_per_s"] and last["tokens"] > 4:
        seen.speeds.append(last["tokens_per_s"])


def load(url: str, clients: int, seconds: float, tokens: int) -> Seen:
    """So many clients for some seconds, and a process of its own that asks /live ten times a second."""
    seen, ends = Seen(), time.monotonic() + seconds

    def run(number: int) -> None:
        with client_at(number) as client:
            while time.monotonic() < ends:
                try:
                    ask(client, url, number, tokens, seen)
                except httpx.HTTPError as error:
                    seen.faults.append(type(error).__name__)

    command = [sys.executable, "-c", WATCH, f"{url}/live", str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        threads = [threading.Thread(target=run, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert watch.stdout is not None
        seen.live = json.loads(watch.stdout.read())
    return seen


def percentile(values: list[float], percent: int) -> float | None:
    if len(values) < 2:
        return values[0] if values else None
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def summary(seen: Seen) -> dict[str, Any]:
    return {
        "answers": len(seen.first_tokens),
        "tokens_per_s_median": percentile(seen.speeds, 50),
        "ttft_s_p50": percentile(seen.first_tokens, 50),
        "rejections": len(seen.rejections),
        "rejection_s_p99": percentile(seen.rejections, 99),
        "live_s_p99": percentile(seen.live, 99),
        "live_s_max": max(seen.live, default=None),
        "faults": len(seen.faults),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:7860", help="a warm studio on this machine")
    parser.add_argument("--seconds", type=float, default=30, help="of each load (default: 30)")
    parser.add_argument("--tokens", type=int, default=64, help="the most tokens of an answer (default: 64)")
    parser.add_argument("--times", type=int, nargs="+", default=[4, 20], help="clients for each slot (default: 4 20)")
    parser.add_argument("--peers", action="store_true", help="start servers of this app and of llama.cpp, and compare")
    parser.add_argument("--cost", action="store_true", help="start a server, and measure the event loop's time")
    arguments = parser.parse_args()
    if arguments.cost:
        from benchmarks.http_cost import measure

        print(json.dumps({"benchmark": "serving, cost", "hardware": describe(), **measure()}))
        return
    if arguments.peers:
        from benchmarks.http_peers import Peers, compare  # imports the engine

        print(json.dumps({"benchmark": "serving, peers", "hardware": describe(), **compare(Peers())}))
        return
    health = httpx.get(f"{arguments.url}/health", timeout=60).json()
    slots = health["chat_engine"]["slots"]
    report: dict[str, Any] = {"benchmark": "serving", "hardware": describe(), "slots": slots}
    load(arguments.url, slots, 3, arguments.tokens)  # warm
    for times in (1, *arguments.times):
        seen = load(arguments.url, slots * times, arguments.seconds, arguments.tokens)
        found = report[f"{times}x"] = summary(seen)
        print(f"{times} clients a slot: " + ", ".join(f"{name} {value}" for name, value in found.items()), flush=True)
        for fault in sorted({*seen.faults})[:3]:
            print(f"  {fault}")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
