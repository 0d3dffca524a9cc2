"""The HTTP API beside llama.cpp's server: the same client, prompts and random weights, on this machine.

`python -m benchmarks.serving --peers`, after `make bench-peers`. Each server runs alone; llama-cpp-python's answers one
request at a time. Reported for each number of clients: time to the first token, time of a later token, and tokens a
second of all clients, as medians of the rounds; and the same of this engine without HTTP. No answer ends early.
"""

import asyncio
import contextlib
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch
from openai import AsyncOpenAI
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from benchmarks.contenders import Engine, random_model
from hfjax_app.chat import ChatEngine
from hfjax_app.embedded import resolve

START_S = 1_800
QUESTION = "Tell me a long story about a fox, the sea, and a machine that learns. "


@dataclass(frozen=True, kw_only=True)
class Peers:
    """What is compared.

    Args:
        shape: of the model, one of contenders.SHAPES.
        clients: numbers of clients that ask at the same time.
        tokens: of each answer.
        rounds: of each number of clients.
        context: tokens of a slot.
        prompt: how often the question is repeated.
    """

    shape: str = "smollm2-135m"
    clients: tuple[int, ...] = (1, 4, 16)
    tokens: int = 64
    rounds: int = 3
    context: int = 512
    prompt: int = 4


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The answers to one round; times in seconds."""

    first_s: list[float]
    token_s: list[float]
    seconds: float
    tokens: int


def compare(peers: Peers) -> dict[str, Any]:
    """Run all of them; returns the report."""
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = saved(peers, Path(folder) / "model")
        report["hfjax, engine"] = without_http(peers, checkpoint)
        with hfjax(peers, checkpoint) as url:
            report["hfjax, HTTP"] = asked(peers, url)
        if importlib.util.find_spec("llama_cpp") is None:
            print("llama.cpp is not here: `make bench-peers` builds it", flush=True)
        else:
            with llama_cpp(peers, checkpoint) as url:
                report["llama.cpp, HTTP"] = asked(peers, url)
    return report


def saved(peers: Peers, folder: Path) -> Path:
    """The checkpoint, and beside it the same weights as a GGUF file; both with the same tokenizer."""
    model = random_model(peers.shape, torch.bfloat16, peers.context)
    model.save_pretrained(folder)
    tokenizer = visible_tokenizer(model.config.vocab_size)
    tokenizer.save_pretrained(folder)
    if importlib.util.find_spec("gguf") is not None:
        from benchmarks.gguf_file import write

        write(model.float(), folder / "model.gguf", "BF16", tokenizer)
    return folder


def visible_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """The tokenizer of an embedded model with more tokens, so that every token of random weights has a text.

    A server sends nothing for a token without one, and its client would see no token until the end.
    """
    bpe = json.loads(AutoTokenizer.from_pretrained(resolve("chat-llama")).backend_tokenizer.to_str())
    known = bpe["model"]["vocab"]
    known |= {f"\u0120w{number}": number for number in range(len(known), vocabulary)}  # byte-level BPE's " w4096"
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(bpe)))


def prompts(peers: Peers, clients: int, turn: int) -> list[str]:
    """A prompt for each client, none of which the server has seen."""
    return [f"{clients}.{turn}.{number}: {QUESTION * peers.prompt}" for number in range(clients)]


def without_http(peers: Peers, checkpoint: Path) -> dict[str, Any]:
    """This engine in this process."""
    engine = ChatEngine.from_pretrained(checkpoint, slots=max(peers.clients), context=peers.context)
    running = Engine("hfjax", engine, 0)
    found = {}
    for clients in peers.clients:
        turns = [
            [engine.tokenizer.encode(text) for text in prompts(peers, clients, turn)]
            for turn in range(peers.rounds + 1)
        ]
        running.run(turns[0], 4)
        runs = [running.run(turn, peers.tokens) for turn in turns[1:]]
        made = clients * peers.tokens
        found[f"{clients} clients"] = {
            "first_s": statistics.median(run.first_s for run in runs),
            "token_s": statistics.median((run.seconds - run.first_s) / (peers.tokens - 1) for run in runs),
            "tokens_per_s": statistics.median(made / run.seconds for run in runs),
        }
    engine.stop()
    return found


def asked(peers: Peers, url: str) -> dict[str, Any]:
    """A server, by OpenAI's client."""
    found = {}
    for clients in peers.clients:
        asyncio.run(one_round(peers, url, clients, turn=0, tokens=4))  # warm
        rounds = [
            asyncio.run(one_round(peers, url, clients, turn=turn, tokens=peers.tokens))
            for turn in range(1, peers.rounds + 1)
        ]
        found[f"{clients} clients"] = {
            "first_s": statistics.median(second for seen in rounds for second in seen.first_s),
            "token_s": statistics.median(second for seen in rounds for second in seen.token_s),
            "tokens_per_s": statistics.median(seen.tokens / seen.seconds for seen in rounds),
        }
        print(f"{url} {clients} clients: {found[f'{clients} clients']}", flush=True)
    return found


async def one_round(peers: Peers, url: str, clients: int, *, turn: int, tokens: int) -> Seen:
    """All clients at once, each with its prompt."""
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600) as client:
        model = (await client.models.list()).data[0].id

        async def ask(prompt: str) -> tuple[float, float]:
            began = time.perf_counter()
            first, newest, reason = 0.0, began, None
            stream = await client.completions.create(
                model=model, prompt=prompt, max_tokens=tokens, temperature=0, stream=True
            )
            async for event in stream:
                newest, reason = time.perf_counter(), event.choices[0].finish_reason
                first = first or newest - began
            if reason != "length":
                raise SystemExit(f"{url}: an answer ended early: {reason}")
            return first, (newest - began - first) / max(1, tokens - 1)

        began = time.perf_counter()
        answers = await asyncio.gather(*map(ask, prompts(peers, clients, turn)))
        seconds = time.perf_counter() - began
    return Seen(
        first_s=[first for first, _ in answers],
        token_s=[token for _, token in answers],
        seconds=seconds,
        tokens=clients * tokens,
    )


@contextlib.contextmanager
def hfjax(peers: Peers, checkpoint: Path) -> Iterator[str]:
    """This app with this chat model only."""
    nothing = str(checkpoint / "none")
    settings = {
        "HFJAX_CHAT_MODEL": str(checkpoint),
        "HFJAX_SENTIMENT_MODEL": nothing,
        "HFJAX_IMAGE_MODEL": nothing,
        "HFJAX_SLOTS": str(max(peers.clients)),
        "HFJAX_CONTEXT": str(peers.context),
        "HFJAX_CLIENT_REQUESTS": "64",
    }
    port = free_port()
    command = [sys.executable, "-m", "hfjax_app", "serve", "--port", str(port)]
    with served(command, settings, f"http://127.0.0.1:{port}", "/ready/chat"):
        wait_for_all_programs(f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}"


def wait_for_all_programs(url: str) -> None:
    """Return when this app's chat model has also the programs that are only faster."""
    while True:
        chat = httpx.get(f"{url}/health", timeout=30).json()["backends"]["chat"]
        if chat["programs"] == chat["programs_expected"]:
            return
        time.sleep(0.5)


@contextlib.contextmanager
def llama_cpp(peers: Peers, checkpoint: Path) -> Iterator[str]:
    """llama-cpp-python's server."""
    port = free_port()
    options = {"model": checkpoint / "model.gguf", "port": port, "n_ctx": peers.context, "n_threads": os.cpu_count()}
    options["interrupt_requests"] = False  # or a new request ends the one that runs
    command = [sys.executable, "-m", "llama_cpp.server"]
    command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
    with served(command, {}, f"http://127.0.0.1:{port}", "/v1/models"):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def served(command: list[str], settings: dict[str, str], url: str, ready: str) -> Iterator[int]:
    """A server's process id while the block runs, once it answers 200 at the path `ready`."""
    with subprocess.Popen(command, env=os.environ | settings, stdout=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + START_S
            while not _answers(f"{url}{ready}"):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"it does not serve: {' '.join(command)}")
                time.sleep(0.5)
            yield process.pid
        finally:
            process.terminate()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=30).status_code == 200
    except httpx.HTTPError:
        return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
