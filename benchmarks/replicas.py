"""The app on Ray Serve beside the plain server, and a Serve app that does nothing; then many replicas, simulated.

`python -m benchmarks.replicas` needs requirements-ray.txt and benchmarks/requirements.txt. It starts all three on this
machine with the embedded chat model: the plain server, the app with one chat replica (then with two), and, in the same
Ray, an app whose ingress asks another deployment for about as many pieces, which it does not compute. Each round asks
all of them in turns, and medians count. Reported: the time to the first token of a single client, what the app adds to
it beyond the app that does nothing, and tokens a second of `--clients` clients at once. On few cores two replicas can't
be faster than one: they share the cores.

The simulation then asks what the ingress would allow where each replica has a machine of its own, and an answer lasts a
second: by the processor's time that the ingress was measured to take for a request, and a front for each piece more.
The last line of output is JSON.
"""

import argparse
import asyncio
import json
import os
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import yaml

from benchmarks.hardware import describe

ROOT = Path(__file__).parents[1]
START_S = 900.0
MODEL = "chat-gemma"
SLOTS, TOKENS, PIECES = 4, 64, 2  # pieces of the app that does nothing, about as many as an answer has
MANY_PIECES = 42  # of the same, for what one costs
PLAIN, ONE, TWO, NOTHING = "plain server", "one replica", "two replicas", "nothing"
RAY = {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
PROCESSES = {"ingress": "ray::ServeReplica:hfjax:ingress", "proxy": "ray::ProxyActor"}  # by their titles
FRONT = "ray::ServeReplica:nothing:front"
ASKED = 8  # by a single client, in a round
GIVEN, GIVEN_S = 20, 0.05  # pieces of an answer on a machine of its own, and the time between two, in the simulation


def nothing(arguments: dict[str, str]) -> Any:
    """A Serve app of two deployments, as the app has, without a model."""
    from fastapi import FastAPI
    from fastapi.responses import StreamingResponse
    from ray import serve

    @serve.deployment(name="model", max_ongoing_requests=100, ray_actor_options={"num_cpus": 0})
    class Model:
        async def pieces(self, count: int) -> AsyncIterator[str]:
            for number in range(count):
                yield f"piece {number} " * 10

    app = FastAPI()

    @serve.deployment(name="front", max_ongoing_requests=100, ray_actor_options={"num_cpus": 0})
    @serve.ingress(app)
    class Front:
        def __init__(self, model: Any):
            self._pieces = model.options(stream=True).pieces

        @app.post("/v1/chat/completions")
        async def stream(self, body: dict[str, Any]) -> StreamingResponse:  # it is read: Ray fetches it by a call
            async def events() -> AsyncIterator[str]:
                async for piece in self._pieces.remote(body.get("pieces", PIECES)):
                    event = {"choices": [{"delta": {"content": piece}}]}
                    yield f"data: {json.dumps(event)}\n\n"

            return StreamingResponse(events(), media_type="text/event-stream")

    return Front.bind(Model.bind())


# --- servers


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def wait(holds: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + START_S
    while True:
        with suppress(httpx.HTTPError, ValueError):
            if holds():
                return
        if time.monotonic() > ends:
            sys.exit(f"error: {what}: not after {START_S:.0f} s")
        time.sleep(0.5)


@contextmanager
def running(command: list[str], **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(120)
            finally:
                process.kill()


class Ray:
    """The app and the one that does nothing, in one Ray.

    Args:
        folder: of the config file.
    """

    def __init__(self, folder: Path):
        self._file, self._port = folder / "serve.yaml", free_port()
        self.environment = {**RAY, "RAY_AUTH_TOKEN": secrets.token_hex(32), "PYTHONPATH": str(ROOT)}
        self.url = f"http://127.0.0.1:{self._port}"
        self.write(1)

    @property
    def command(self) -> list[str]:
        return [str(Path(sys.executable).with_name("serve")), "run", str(self._file)]

    def write(self, replicas: int) -> None:
        app = {
            "name": "hfjax",
            "route_prefix": "/",
            "import_path": "hfjax_app.serving:build_app",
            "args": {"chat_model": MODEL, "slots": SLOTS},
            "deployments": [{"name": "chat", "num_replicas": replicas, "ray_actor_options": {"num_cpus": 0}}],
        }
        none = {"name": "nothing", "route_prefix": "/nothing", "import_path": "benchmarks.replicas:nothing", "args": {}}
        options = {"host": "127.0.0.1", "port": self._port}
        config = {"proxy_location": "HeadOnly", "http_options": options, "applications": [app, none]}
        self._file.write_text(yaml.safe_dump(config))

    def scale(self, replicas: int) -> None:
        self.write(replicas)
        command = [str(Path(sys.executable).with_name("serve")), "deploy", str(self._file)]
        subprocess.run(command, env={**os.environ, **self.environment}, capture_output=True, check=True)
        line = f'hfjax_replicas{{deployment="chat"}} {replicas:.1f}'
        wait(lambda: line in httpx.get(f"{self.url}/metrics", timeout=30).text, f"{replicas} replicas")


def processor_s(title: str) -> float:
    """Seconds of the processor that processes whose title begins so have taken."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (path / "cmdline").read_bytes().startswith(title.encode()):
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


# --- clients


async def ask(client: httpx.AsyncClient, url: str, number: int, **besides: Any) -> tuple[float, int]:
    """Seconds to the first piece of text, and the number of pieces."""
    body = {
        "messages": [{"role": "user", "content": f"Tell me a story about {number} cats."}],
        "max_tokens": TOKENS,
        "temperature": 0.0,
        "stream": True,
        "logit_bias": {"1": -100, "5": -100},  # the embedded model's end tokens: all answers have TOKENS tokens
        **besides,
    }
    began, first, pieces = time.perf_counter(), 0.0, 0
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                choices = json.loads(line.removeprefix("data: "))["choices"]
                if choices and choices[0]["delta"].get("content"):
                    first = first or time.perf_counter() - began
                    pieces += 1
    return first, pieces


async def load(url: str, clients: int, requests: int, **besides: Any) -> tuple[float, int]:
    """Seconds of all requests, and the number of their pieces."""
    numbers, pieces = iter(range(requests)), 0
    async with httpx.AsyncClient(timeout=300) as client:

        async def one() -> None:
            nonlocal pieces
            for number in numbers:
                pieces += (await ask(client, url, number, **besides))[1]

        began = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(clients)))
        return time.perf_counter() - began, pieces


async def first_token(url: str, asked: int) -> float:
    async with httpx.AsyncClient(timeout=300) as client:
        return statistics.median([(await ask(client, url, number))[0] for number in range(asked)])


# --- the simulation


def simulated(replicas: int, *, request_s: float, piece_s: float, seconds: float = 60.0) -> dict[str, float]:
    """Answers a second where every slot of all replicas is always asked, and how busy the ingress is.

    Args:
        replicas: each with SLOTS slots, whose answers have a piece every GIVEN_S seconds, on a machine of its own.
        request_s: of the ingress's processor, for a request.
        piece_s: and for each of its pieces.
        seconds: that are simulated.
    """
    import simpy

    world = simpy.Environment()
    ingress = simpy.Resource(world, capacity=1)  # one process, whose Python runs one thread at a time
    done, busy = 0, 0.0

    def passed(taken_s: float) -> Iterator[Any]:
        nonlocal busy
        with ingress.request() as turn:
            yield turn
            busy += taken_s
            yield world.timeout(taken_s)

    def slot(phase: float) -> Iterator[Any]:
        nonlocal done
        yield world.timeout(phase)
        while True:
            yield from passed(request_s)
            for _ in range(GIVEN):
                yield world.timeout(GIVEN_S)
                yield from passed(piece_s)
            done += 1

    count = replicas * SLOTS
    for number in range(count):
        world.process(slot(number * GIVEN_S / count))
    world.run(until=seconds)
    return {"replicas": replicas, "answers_per_s": done / seconds, "ingress": min(1.0, busy / seconds)}


def limit(report: dict[str, Any], **costs: Any) -> None:
    alone = simulated(1, **costs)["answers_per_s"]
    rows = []
    for replicas in (1, 2, 4, 8, 16, 32, 64, 128):
        row = simulated(replicas, **costs)
        row["of_linear"] = row["answers_per_s"] / (alone * replicas)
        rows.append(row)
        print(
            f"  {replicas:4} replicas: {row['answers_per_s']:8.1f} answers/s, {row['of_linear']:4.0%} of linear, "
            f"ingress busy {row['ingress']:4.0%}"
        )
    report["simulated"] = rows
    report["ingress_limits_at"] = next((row["replicas"] for row in rows if row["of_linear"] < 0.95), None)


def measured(name: str, urls: dict[str, str], arguments: argparse.Namespace, report: dict[str, Any]) -> None:
    """Ask all of them in turns, and report on the app of this name."""
    for url in urls.values():  # warm connections and caches, uncounted
        asyncio.run(load(url, arguments.clients, 2 * arguments.clients))
    firsts: dict[str, list[float]] = {key: [] for key in urls}
    rates: dict[str, list[float]] = {PLAIN: [], name: []}
    costs: dict[str, list[float]] = {process: [] for process in PROCESSES}
    pieces = 0
    for _ in range(arguments.rounds):
        for key, url in urls.items():
            firsts[key].append(asyncio.run(first_token(url, ASKED)))
        for key in rates:
            before = {process: processor_s(title) for process, title in PROCESSES.items()}
            seconds, pieces = asyncio.run(load(urls[key], arguments.clients, arguments.requests))
            rates[key].append(arguments.requests * TOKENS / seconds)
            if key == name:
                for process, title in PROCESSES.items():
                    costs[process].append((processor_s(title) - before[process]) / arguments.requests)
    first = {key: statistics.median(seconds) * 1e3 for key, seconds in firsts.items()}
    rate = {key: statistics.median(found) for key, found in rates.items()}
    beyond = first[name] - first[PLAIN] - first[NOTHING]
    report[name] = {
        "first_token_ms": first,
        "beyond_nothing_ms": beyond,
        "tokens_per_s": rate,
        "pieces": pieces / arguments.requests,
        "processor_ms_per_request": {process: statistics.median(found) * 1e3 for process, found in costs.items()},
    }
    print(
        f"{name}: first token after {first[name]:.1f} ms; {PLAIN} {first[PLAIN]:.1f}, {NOTHING} {first[NOTHING]:.1f}: "
        f"{beyond:+.1f} ms beyond both; {rate[name]:.0f} tokens/s, {rate[name] / rate[PLAIN]:.2f} of the {PLAIN}",
        flush=True,
    )


def piece_cost(url: str, arguments: argparse.Namespace) -> float:
    """Seconds of the processor that the front of the app that does nothing takes for one piece more."""
    taken = []
    for pieces in (PIECES, MANY_PIECES):
        before = processor_s(FRONT)
        asyncio.run(load(url, arguments.clients, arguments.requests, pieces=pieces))
        taken.append((processor_s(FRONT) - before) / arguments.requests)
    return (taken[1] - taken[0]) / (MANY_PIECES - PIECES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--clients", type=int, default=SLOTS, metavar="N", help=f"at once (default: {SLOTS})")
    parser.add_argument("--requests", type=int, default=24, metavar="N", help="of each load (default: 24)")
    arguments = parser.parse_args()
    report: dict[str, Any] = {"benchmark": "replicas", "hardware": describe(), "rounds": arguments.rounds}
    with tempfile.TemporaryDirectory() as folder:
        ray, port = Ray(Path(folder)), free_port()
        plain = f"http://127.0.0.1:{port}"
        serve = [
            sys.executable,
            "-m",
            "hfjax_app",
            "serve",
            "--port",
            str(port),
            "--slots",
            str(SLOTS),
            "--chat-model",
            MODEL,
        ]
        with running(serve), running(ray.command, **ray.environment):
            for url in (plain, ray.url):
                wait(lambda url=url: httpx.get(f"{url}/ready", timeout=60).status_code == 200, url)
            for replicas, name in enumerate((ONE, TWO), 1):
                ray.scale(replicas)
                urls = {PLAIN: plain, name: ray.url, NOTHING: f"{ray.url}/nothing"}
                measured(name, urls, arguments, report)
            report["piece_s"] = piece_cost(urls[NOTHING], arguments)
    found, piece_s = report[ONE], report["piece_s"]
    request_s = found["processor_ms_per_request"]["ingress"] / 1e3 - found["pieces"] * piece_s
    print(
        f"the ingress takes {request_s * 1e3:.1f} ms of a processor for a request, {piece_s * 1e3:.2f} ms for a piece; "
        f"{GIVEN} pieces, one every {GIVEN_S} s:"
    )
    limit(report, request_s=request_s, piece_s=piece_s)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
