"""The app on Ray Serve, on one machine: two chat replicas of the embedded model, one of the others, and the ingress.

Ray is not among the requirements of the other tests: without it, these are skipped.
"""

import importlib.util
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.conftest import ctrl_c_is_heard

ROOT = Path(__file__).parents[2]
START_S = 600.0
SLOTS = 4
# Ray's ports on loopback, and a key for its job interface that only these tests know
RAY = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONPATH": str(ROOT),
}


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    has_ray = importlib.util.find_spec("ray") is not None
    return None if has_ray or collection_path.name == "conftest.py" else True


@dataclass(kw_only=True)
class Cluster:
    """A running app.

    Attributes:
        url: of the ingress.
        folder: of config files, and the log.
        environment: of Ray's commands.
    """

    url: str
    folder: Path
    environment: dict[str, str]
    port: int
    config: dict[str, Any] = field(default_factory=dict)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=60)

    def health(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get("/health").json()
        return found

    def explains(self) -> bool:
        answer = httpx.post(f"{self.url}/v1/explain", json={"input": "a"}, timeout=60)
        return answer.status_code == 200

    def samples(self, name: str, **labels: str) -> dict[str, float]:
        """The values of a metric by replica, where these labels stand."""
        found: dict[str, float] = {}
        for line in self.get("/metrics").text.splitlines():
            if line.startswith(f"{name}{{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
                replica = line.partition('replica="')[2].partition('"')[0]
                found[replica] = found.get(replica, 0.0) + float(line.rpartition(" ")[2])
        return found

    def processes(self, deployment: str) -> list[int]:
        """The processes of a deployment's replicas."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if path.read_bytes().startswith(f"ray::ServeReplica:hfjax:{deployment}".encode()):
                    found.append(int(path.parent.name))
        return sorted(found)

    def process(self, deployment: str, replica: str) -> int:
        """The process of one of them, by the name that metrics have."""
        [found] = [
            each["pid"]
            for each in self.status()["deployments"][deployment]["replicas"]
            if each["replica_id"] == replica
        ]
        return int(found)

    def wait(self, holds: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until it holds."""
        started = time.monotonic()
        while True:
            with suppress(httpx.HTTPError, ValueError, KeyError):
                if holds():
                    return
            assert time.monotonic() < started + seconds, f"not {what} after {seconds} s\n{self.log()}"
            time.sleep(0.2)

    def wait_ready(self, seconds: float = START_S) -> None:
        self.wait(lambda: self.get("/ready").status_code == 200, seconds, "ready")

    def wait_idle(self, seconds: float = START_S) -> None:
        """No slot is busy and no request waits, by the replicas' own report."""

        def idle() -> bool:
            busy, waiting = self.samples("hfjax_chat_slots", state="busy"), self.samples("hfjax_chat_waiting")
            return bool(busy) and not sum(busy.values()) and not sum(waiting.values())

        self.wait(idle, seconds, "idle")

    def deploy(self, **options: dict[str, Any]) -> None:
        """`serve deploy` with options of deployments by name, None for Ray's default; others stay as they are."""
        [application] = self.config["applications"]
        known = {each["name"]: each for each in application.get("deployments", [])}
        for name, changed in options.items():
            merged = {**known.get(name, {"name": name}), **changed}
            known[name] = {option: value for option, value in merged.items() if value is not None}
        application["deployments"] = [*known.values()]
        path = self.folder / "serve.yaml"
        path.write_text(yaml.safe_dump(self.config))
        before = self.status().get("last_deployed_time_s", 0)
        self.run("serve", "deploy", str(path))

        def is_applied() -> bool:
            status = self.status()
            return status["last_deployed_time_s"] > before and status["status"] == "RUNNING"

        self.wait(is_applied, START_S, "deployed")

    def status(self) -> dict[str, Any]:
        """The application's, by the REST interface of Ray's dashboard."""
        headers = {"Authorization": f"Bearer {self.environment['RAY_AUTH_TOKEN']}"}
        found = httpx.get("http://127.0.0.1:8265/api/serve/applications/", headers=headers, timeout=60)
        status: dict[str, Any] = found.raise_for_status().json()["applications"]["hfjax"]
        return status

    def kill_ingress(self) -> None:
        """SIGKILL; returns when it is ready again."""
        [victim] = self.processes("ingress")
        os.kill(victim, signal.SIGKILL)
        self.wait(lambda: victim not in self.processes("ingress"), START_S, "gone")
        self.wait_ready()

    def run(self, *command: str) -> str:
        program = [str(Path(sys.executable).with_name(command[0])), *command[1:]]
        done = subprocess.run(program, env=self.environment, capture_output=True, text=True, timeout=START_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def log(self) -> str:
        text = (self.folder / "log").read_text() if (self.folder / "log").exists() else ""
        return text[-4000:]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder, port = tmp_path_factory.mktemp("ray"), free_port()
    environment = {**os.environ, **RAY, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environment.pop("RAY_ADDRESS", None)
    application = {
        "name": "hfjax",
        "route_prefix": "/",
        "import_path": "hfjax_app.serving:build_app",
        "args": {"chat_model": "chat-gemma", "slots": SLOTS},
        "deployments": [
            {"name": "chat", "num_replicas": 2, "ray_actor_options": {"num_cpus": 0.1}},
            {"name": "sentiment", "ray_actor_options": {"num_cpus": 0.1}},
            {"name": "images", "ray_actor_options": {"num_cpus": 0.1}},
        ],
    }
    options = {"host": "127.0.0.1", "port": port}
    config = {"proxy_location": "HeadOnly", "http_options": options, "applications": [application]}
    found = Cluster(url=f"http://127.0.0.1:{port}", folder=folder, environment=environment, port=port, config=config)
    (folder / "serve.yaml").write_text(yaml.safe_dump(config))
    with (folder / "log").open("w") as log, ctrl_c_is_heard():
        process = subprocess.Popen(
            [Path(sys.executable).with_name("serve"), "run", folder / "serve.yaml"],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        found.wait_ready()
        found.wait(lambda: len(found.samples("hfjax_chat_slots", state="free")) == 2, START_S, "two chat replicas")
        found.wait(found.explains, START_S, "able to explain")  # by programs that are compiled last
        yield found
    finally:
        process.send_signal(signal.SIGINT)  # ends Serve, and Ray, which it started
        try:
            process.wait(START_S)
        finally:
            process.kill()
