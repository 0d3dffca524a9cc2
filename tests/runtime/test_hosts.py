"""The number of hosts of a TPU slice, from its variables or from a metadata server on loopback."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Barrier, Thread

import jax
import pytest

from hfjax_app.runtime import process
from hfjax_app.runtime.process import hosts_of_slice


class Metadata(BaseHTTPRequestHandler):
    """Answers like a TPU VM's server; the server's `workers` is the attribute's value, None: no such attribute."""

    def do_GET(self) -> None:
        self.server.asked += 1
        known = self.server.workers is not None and self.path.endswith("/instance/attributes/worker-network-endpoints")
        self.send_response(200 if known and self.headers["Metadata-Flavor"] == "Google" else 404)
        self.end_headers()
        if known:
            self.wfile.write(self.server.workers.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def metadata() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), Metadata) as server:
        server.workers, server.asked = None, 0
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("workers", "hosts"),
    [("unknown:unknown:10.0.0.1", 1), ("10.0.0.1,10.0.0.2,10.0.0.3,10.0.0.4", 4), ("", 1), (None, 1)],
)
def test_metadata(metadata: HTTPServer, workers: str | None, hosts: int) -> None:
    metadata.workers = workers
    assert hosts_of_slice({"GCE_METADATA_IP": f"127.0.0.1:{metadata.server_port}"}) == hosts
    assert metadata.asked == 1


@pytest.mark.parametrize(
    ("variables", "hosts"),
    [
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, 1),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, 2),
        ({"TPU_PROCESS_ADDRESSES": "a:8476,b:8476,c:8476"}, 3),
        ({"TPU_SKIP_MDS_QUERY": "1"}, 1),
    ],
)
def test_variables_come_first_and_need_no_request(metadata: HTTPServer, variables: dict[str, str], hosts: int) -> None:
    metadata.workers = "a,b,c,d,e"
    assert hosts_of_slice({"GCE_METADATA_IP": f"127.0.0.1:{metadata.server_port}", **variables}) == hosts
    assert metadata.asked == 0


def test_without_a_metadata_server_there_is_one_host() -> None:
    assert hosts_of_slice({"GCE_METADATA_IP": "127.0.0.1:1"}) == 1


def test_two_threads_join_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The warm-up calls `prepare`, and so does a page that shows the device; joining twice is an error in jax."""
    joined, both = [], Barrier(2)

    def initialize() -> None:
        time.sleep(0.2)
        joined.append(True)

    def prepare() -> None:
        both.wait()
        process.prepare()

    monkeypatch.setattr(process, "runs_on_cpu", lambda: False)
    monkeypatch.setattr(process, "has_tpu", lambda: True)
    monkeypatch.setattr(process, "_check_devices", lambda: None)
    monkeypatch.setattr(process, "_use_cache_folder", cache(lambda folder: None))
    monkeypatch.setattr(process, "_subfolder_of_jax_cache", lambda: None)
    monkeypatch.setattr(process, "join_hosts", cache(process.join_hosts.__wrapped__))
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b")
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: False)
    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    with ThreadPoolExecutor(2) as threads:
        for prepared in [threads.submit(prepare), threads.submit(prepare)]:
            prepared.result()
    assert joined == [True]
