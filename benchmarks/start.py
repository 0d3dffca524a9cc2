"""Seconds from the command to the page, to the chat's first token, and to all tabs and programs.

`python -m benchmarks.start` starts the server with an empty cache of compiled programs and again with the full one:
with the embedded models, and with a checkpoint of Gemma 3 270M's shape (random bfloat16 weights, the embedded model's
tokenizer, a context of 2,048 tokens). A first token is one that a client has received; a request is sent as soon as
/health says that chat is ready. Beside it: the imports alone, each in a process of its own, transformers' first token
of the same checkpoint, and what a stream keeps of its speed while other programs are compiled behind it. Medians of
--rounds; the last line of output is JSON. Nothing else should run on the machine.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

os.environ["HF_HUB_OFFLINE"] = "1"

from benchmarks.shapes import GEMMA_3_270M

IMPORTS = ("torch", "jax", "transformers", "gradio", "torchax", "diffusers")
POLL_S = 0.05
LONGEST_S = 600.0
QUESTION = [{"role": "user", "content": "Tell me a long story about a fox and a river."}]

TRANSFORMERS = """
import sys, time
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype="bfloat16")
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
messages = [{"role": "user", "content": "Tell me a long story about a fox and a river."}]
ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
model.generate(**ids, max_new_tokens=1, do_sample=False)
"""


def write_checkpoint(folder: Path) -> None:
    """A checkpoint of Gemma 3 270M's shape with random weights."""
    import torch
    from transformers import AutoTokenizer, Gemma3ForCausalLM, Gemma3TextConfig

    from hfjax_app.embedded import resolve

    torch.manual_seed(0)
    config = Gemma3TextConfig(**GEMMA_3_270M, eos_token_id=None)
    Gemma3ForCausalLM._from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(resolve("chat-gemma")).save_pretrained(folder)


@contextmanager
def server(cache: Path, **settings: str) -> Iterator[tuple[str, float]]:
    """A server's address and the time of its command; it is stopped at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {"HFJAX_PORT": str(port), "HFJAX_CACHE_DIR": str(cache), **settings}
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "hfjax_app", "serve"],
        env=os.environ | variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}", started
    finally:
        process.terminate()
        process.wait()


def wait_until(condition: Any, started: float) -> float:
    """Seconds from the start until the condition holds."""
    while not condition():
        if time.perf_counter() - started > LONGEST_S:
            raise TimeoutError(f"not ready after {LONGEST_S:.0f} s")
        time.sleep(POLL_S)
    return time.perf_counter() - started


def is_up(url: str) -> bool:
    try:
        with urlopen(url, timeout=30) as response:
            return response.status == 200
    except OSError:
        return False


def health(url: str) -> dict[str, Any]:
    try:
        with urlopen(f"{url}/health", timeout=30) as response:
            return json.load(response)
    except OSError as error:  # 503 has a body too
        body = getattr(error, "read", lambda: b"{}")()
        return json.loads(body or b"{}")


def stream(url: str, max_tokens: int) -> Iterator[tuple[float, int]]:
    """Time and number of tokens of each event of an answer."""
    body = {"messages": QUESTION, "temperature": 0, "max_tokens": max_tokens}
    request = Request(f"{url}/gradio_api/call/v2/chat", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=LONGEST_S) as response:
        event = json.load(response)["event_id"]
    with urlopen(f"{url}/gradio_api/call/chat/{event}", timeout=LONGEST_S) as response:
        for line in response:
            if line.startswith(b"data: ["):
                [reply, *_] = json.loads(line[len(b"data: ") :])
                yield time.perf_counter(), reply["tokens"]


def first_token(url: str, started: float) -> float:
    return next(at for at, tokens in stream(url, 4) if tokens) - started


def tokens_per_s(url: str, tokens: int) -> float:
    """Tokens per second of one answer after its first token."""
    times = [(at, made) for at, made in stream(url, tokens) if made]
    (began, before), (ended, after) = times[0], times[-1]
    return (after - before) / max(ended - began, 1e-9)


def start(cache: Path, settings: dict[str, str], *, all_tabs: bool) -> dict[str, float]:
    """One start, with the speed of streams before and after the last program has joined."""
    with server(cache, **settings) as (url, started):

        def of(kind: str) -> dict[str, Any]:
            found: dict[str, Any] = health(url).get("backends", {}).get(kind, {})
            return found

        def complete() -> bool:
            backends = health(url).get("backends", {})
            kinds = backends if all_tabs else {"chat"}
            return all(backends[kind]["programs"] == backends[kind]["programs_expected"] for kind in kinds)

        times = {"page": wait_until(lambda: is_up(url), started)}
        wait_until(lambda: of("chat").get("state") == "ready", started)
        times["first_token"] = first_token(url, started)
        if all_tabs:
            times["all_tabs"] = wait_until(lambda: health(url).get("status") == "ready", started)
        speeds = []
        while not complete():
            speeds.append(tokens_per_s(url, 96))
        times["all_programs"] = wait_until(complete, started)
        times["tokens_per_s"] = tokens_per_s(url, 96)
        if len(speeds) > 2:
            times["kept_while_compiling"] = statistics.median(speeds) / times["tokens_per_s"]
        return times


def process_seconds(*arguments: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    return time.perf_counter() - started


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for one in rounds for name in one)
    return {name: round(statistics.median(one[name] for one in rounds if name in one), 2) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("embedded", "270m"))
    parsed = parser.parse_args()
    result: dict[str, Any] = {
        "imports": {
            name: round(statistics.median(process_seconds("-c", f"import {name}") for _ in range(parsed.rounds)), 2)
            for name in IMPORTS
        }
    }
    print("imports, each alone:", result["imports"], flush=True)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "gemma-3-270m-shape"
        if parsed.only != "embedded":
            write_checkpoint(checkpoint)
            seconds = [process_seconds("-c", TRANSFORMERS, str(checkpoint)) for _ in range(parsed.rounds)]
            result["transformers"] = {"first_token": round(statistics.median(seconds), 2)}
            print("transformers, first token:", result["transformers"], flush=True)
        large = {"HFJAX_CHAT_MODEL": str(checkpoint), "HFJAX_CONTEXT": "2048"}
        for name, settings in {"embedded": {}, "270m": large}.items():
            if parsed.only in (None, name):
                caches = [Path(folder) / f"{name}-{i}" for i in range(parsed.rounds)]
                for state in ("empty", "full"):
                    rounds = [start(cache, settings, all_tabs=name == "embedded") for cache in caches]
                    result[f"{name}, {state} cache"] = medians(rounds)
                    print(f"{name}, {state} cache:", medians(rounds), flush=True)
    from benchmarks.hardware import describe

    print(json.dumps(result | {"machine": describe()}))


if __name__ == "__main__":
    main()
