"""The queue of Gradio's events: no request stops or fills it, clients take turns, results wait for their readers."""

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import gradio as gr
import gradio.route_utils
import gradio.utils
import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from hfjax_app.client import Client
from hfjax_app.limits import CLIENT_RUNNING, EVENTS_WAITING
from hfjax_app.server.app import mount_page
from hfjax_app.service.admission import Admission
from hfjax_app.service.usage import Usage
from hfjax_app.studio import event_queue
from hfjax_app.studio.event_queue import FairQueue
from hfjax_app.studio.page import harden

from .conftest import LIMIT_S, served

SHARE = 2 * EVENTS_WAITING


class Held:
    """A page with three functions; `slow` and `one` wait for `go`, and `one` runs one event at a time."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.served: list[str] = []
        self.address = ""
        self.queue: FairQueue
        # a line without a model needs no backends
        nothing = SimpleNamespace(chat_models=None, sentiment_models=None, image_models=None)
        self.usage, self.logged = Usage(), []
        self.admission = Admission(nothing, SHARE, self.usage)  # type: ignore[arg-type]

    @property
    def url(self) -> str:
        return f"{self.address}/gradio_api"

    def client(self, number: int = 1) -> httpx.Client:
        """A client with an address of its own."""
        return httpx.Client(transport=httpx.HTTPTransport(local_address=f"127.0.0.{number}"), timeout=LIMIT_S)

    async def serve(self) -> uvicorn.Config:
        async def slow(text: str, times: int = 3) -> str:
            while not self.go.is_set():
                await asyncio.sleep(0.01)
            return text * times

        async def one(name: str) -> str:
            while not self.go.is_set():
                await asyncio.sleep(0.01)
            self.served.append(name)
            return name

        async def quick(text: str = "quick") -> AsyncIterator[str]:
            for end in range(1, len(text) + 1):
                yield text[:end]

        with gr.Blocks() as page:
            gr.api(slow, api_name="slow", concurrency_id="slow", concurrency_limit=CLIENT_RUNNING + 4)
            gr.api(one, api_name="one", concurrency_id="one", concurrency_limit=1)
            gr.api(quick, api_name="quick", concurrency_id="quick", concurrency_limit=4)
        page.queue(api_open=False)
        app = FastAPI()
        self.queue = harden(page, self.admission, self.usage, lambda event, status, *rest: self.logged.append(status))
        mount_page(app, page, self.queue)
        return uvicorn.Config(app, log_level="warning")


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held()
    with served(held.serve) as held.address:
        yield held
        held.go.set()


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def call(held: Held, client: httpx.Client, name: str, *data: Any) -> httpx.Response:
    return client.post(f"{held.url}/call/{name}", json={"data": data})


def result(held: Held, client: httpx.Client, joined: httpx.Response) -> str:
    assert joined.status_code == 200, joined.text
    return client.get(f"{held.url}/call/quick/{joined.json()['event_id']}").text


def join(held: Held, client: httpx.Client, session: Any, fn_index: Any = 2, data: Any = ("x",)) -> httpx.Response:
    return client.post(f"{held.url}/queue/join", json={"data": data, "fn_index": fn_index, "session_hash": session})


def test_events_that_stopped_the_queue_are_refused(held: Held) -> None:
    """Six events of an empty session stopped Gradio's queue until a restart."""
    with held.client() as client:
        for session in ("", None, 7, "a b", "x" * 100, "a<gradio-sep>b", ["x"]):
            answer = join(held, client, session)
            assert (answer.status_code, "session_hash" in answer.text) == (422, True), answer.text
        for fn_index in (99, -1, None, "2", 1.5, True, [2]):
            assert join(held, client, "s", fn_index).status_code == 404
        for data in (None, "x", {}, ["x", "y"]):
            assert join(held, client, "s", data=data).status_code == 422
        assert '["quick"]' in result(held, client, call(held, client, "quick"))


def test_gradio_looks_for_no_matplotlib(held: Held) -> None:
    """It did before and after each item of a stream: a third of a busy event loop's time."""
    assert vars(gradio.utils)["MatplotlibBackendMananger"] is nullcontext
    assert "MatplotlibBackendMananger" in inspect.getsource(gradio.route_utils.call_process_api)


def test_the_queue_is_started_again(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in its loop: what runs is told, what waits is served."""
    with held.client() as client:
        running, waiting = call(held, client, "one", "a"), call(held, client, "one", "b")
        wait_until(lambda: held.queue.get_active_worker_count() == 1, "runs")
        events = FairQueue.get_events
        faults = []

        def fail(queue: FairQueue) -> Any:
            if not faults:
                faults.append(1)
                raise KeyError("fault")
            return events(queue)

        monkeypatch.setattr(FairQueue, "get_events", fail)
        assert "the server lost this request" in result(held, client, running)
        held.go.set()
        assert '["b"]' in result(held, client, waiting)
        assert held.queue.is_running
    wait_until(lambda: held.admission.inside == 0, "all left")


def test_a_full_line_blocks_no_other_kind(held: Held) -> None:
    """Gradio counts all events together, so a client that flooded one endpoint blocked all tabs."""
    with held.client() as client:
        answers = [call(held, client, "slow", "x") for _ in range(EVENTS_WAITING + 3)]
        assert [answer.status_code for answer in answers[:EVENTS_WAITING]] == [200] * EVENTS_WAITING
        assert answers[-1].status_code == 429
        assert "too many wait already" in answers[-1].text
        assert answers[-1].headers["retry-after"] == "5"
        assert '["quick"]' in result(held, client, call(held, client, "quick"))


def test_a_client_has_a_share(held: Held) -> None:
    with held.client(2) as client:
        for name in ("slow", "one"):
            for _ in range(SHARE // 2):
                assert call(held, client, name, "x").status_code == 200
        assert held.queue.get_active_worker_count() <= CLIENT_RUNNING + 1
        refused = call(held, client, "quick")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
        assert f"{SHARE} of your requests" in refused.text
    with held.client(3) as client:
        assert '["quick"]' in result(held, client, call(held, client, "quick"))


def test_clients_take_turns(held: Held) -> None:
    with held.client(2) as busy, held.client(3) as other:
        joined = [call(held, busy, "one", f"a{number}") for number in range(20)]
        wait_until(lambda: held.queue.get_active_worker_count() == 1, "runs")
        last = call(held, other, "one", "b")
        held.go.set()
        assert '["b"]' in result(held, other, last)
        for each in joined:
            result(held, busy, each)
    assert held.served[:3] == ["a0", "a1", "b"]
    wait_until(lambda: held.admission.inside == 0, "all left")


def test_sessions_belong_to_their_clients(held: Held) -> None:
    with held.client(2) as owner, held.client(3) as stranger:
        joined = call(held, owner, "slow", "secret")
        event = joined.json()["event_id"]
        assert stranger.get(f"{held.url}/call/slow/{event}").status_code == 403
        assert stranger.get(f"{held.url}/heartbeat/{event}").status_code == 403
        assert join(held, stranger, event).status_code == 403
        ended = {"event_id": event, "session_hash": event, "fn_index": 0}
        assert stranger.post(f"{held.url}/cancel", json=ended).status_code == 403
        held.go.set()
        assert "secretsecretsecret" in result(held, owner, joined)
        assert owner.get(f"{held.url}/call/slow/{event}").status_code in (200, 404)
        assert owner.get(f"{held.url}/call/slow/unknown").status_code == 404
    wait_until(lambda: held.admission.inside == 0, "all left")


def test_the_stream_of_a_cancelled_event_ends(held: Held) -> None:
    with held.client() as client:
        for name in ("slow", "one", "one"):  # two that run, and one that waits
            assert join(held, client, "page", {"slow": 0, "one": 1}[name]).status_code == 200
        events = list(held.queue.event_ids_to_events)
        with client.stream("GET", f"{held.url}/queue/data", params={"session_hash": "page"}) as stream:
            with held.client() as other:
                for event in events:
                    ended = {"event_id": event, "session_hash": "page", "fn_index": 0}
                    assert other.post(f"{held.url}/cancel", json=ended).status_code == 200
            messages = list(stream.iter_lines())
    assert "close_stream" in messages[-2]
    wait_until(lambda: held.admission.inside == 0, "all left")


def test_a_reader_that_leaves_ends_its_events(held: Held) -> None:
    with held.client() as client:
        event = call(held, client, "slow", "x").json()["event_id"]
        with client.stream("GET", f"{held.url}/call/slow/{event}"):
            pass
        wait_until(lambda: event not in held.queue.results, "forgotten")
        held.go.set()
        wait_until(lambda: held.admission.inside == 0, "left")


def test_results_of_one_client_do_not_push_out_another_s(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """The 2,000 newest sessions of all clients were kept, so others erased a result by 2,000 calls."""
    monkeypatch.setattr(event_queue, "RESULTS_BYTES", 200_000)
    with held.client(2) as waits, held.client(3) as floods:
        first = call(held, waits, "quick", "mine")
        for _ in range(60):
            joined = call(held, floods, "quick", "x" * 60)
            wait_until(lambda: not held.queue.event_ids_to_events, "done")
        theirs = sum(inbox.client.id == "address:127.0.0.3" for inbox in held.queue.results.values())
        assert theirs < 20
        assert '["mine"]' in result(held, waits, first)
        assert "x" * 60 in result(held, floods, joined), "the newest are kept"


def test_results_of_all_clients_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client that has most loses its oldest."""
    monkeypatch.setattr(event_queue, "RESULTS_TOTAL_BYTES", 5_000)
    results = event_queue.WaitingResults()
    for session, client in (("a1", "a"), ("b1", "b"), ("a2", "a"), ("c1", "c"), ("d1", "d")):
        results.open(session, Client(id=client))
    assert list(results) == ["b1", "a2", "c1", "d1"]


def test_old_results_are_dropped(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_queue, "RESULTS_KEPT_S", 0.1)
    monkeypatch.setattr(event_queue, "SWEEP_S", 0.1)
    held.queue._sweeping.get_loop().call_soon_threadsafe(held.queue._sweeping.cancel)
    with held.client() as client:
        call(held, client, "quick")
        asyncio.run_coroutine_threadsafe(held.queue._sweep(), held.queue._sweeping.get_loop())
        wait_until(lambda: not held.queue.results, "dropped")


def test_left_out_arguments_take_their_defaults(held: Held) -> None:
    """Gradio logged the prompt in a traceback, and answered `{"error": null}`."""
    held.go.set()
    with held.client() as client:
        assert '["ababab"]' in result(held, client, call(held, client, "slow", "ab"))
        by_name = client.post(f"{held.url}/call/v2/slow", json={"text": "ab", "times": 1})
        assert '["ab"]' in result(held, client, by_name)
        for answer, status, says in (
            (call(held, client, "slow"), 422, "argument text of /slow is missing"),
            (call(held, client, "slow", "a", 1, 2), 422, "takes at most 2"),
            (call(held, client, "none", "a"), 404, "there are /slow, /one, /quick"),
            (client.post(f"{held.url}/call/v2/slow", json={"texts": "ab"}), 422, "'texts': /slow takes text, times"),
            (client.post(f"{held.url}/call/v2/slow", json=["ab"]), 422, "must be an object, not list"),
            (client.post(f"{held.url}/call/slow", content=b"{"), 415, "Content-Type: application/json"),
            (client.post(f"{held.url}/call/slow", content=b"[" * 99_999, headers=JSON), 422, "nested too deeply"),
            (client.post(f"{held.url}/call/slow", content=b"\xff\xfe{", headers=JSON), 422, "not JSON"),
        ):
            assert (answer.status_code, says in answer.json()["detail"]) == (status, True), answer.text


JSON = {"content-type": "application/json"}


def test_a_page_that_leaves_with_its_last_message_keeps_its_next_event(held: Held) -> None:
    """A page closes its stream on the last message, and may have joined its next event before that."""
    with held.client() as client, held.client() as other:
        held.go.set()
        assert join(held, client, "page").status_code == 200
        with client.stream("GET", f"{held.url}/queue/data", params={"session_hash": "page"}) as stream:
            next(line for line in stream.iter_lines() if "close_stream" in line)
            assert join(held, other, "page", 0).status_code == 200
        time.sleep(0.2)
        with other.stream("GET", f"{held.url}/queue/data", params={"session_hash": "page"}) as stream:
            assert any("xxx" in line for line in stream.iter_lines())
