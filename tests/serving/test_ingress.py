"""More than one ingress: for clients of /v1, and for the studio only where a proxy keeps sessions on theirs."""

from collections.abc import Iterator

import httpx
import pytest

from .conftest import START_S, Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TRIES = 16
MESSAGES = [{"role": "user", "content": "Hello"}]


def page_is_answered(client: httpx.Client) -> bool:
    """Ask as a page does, in one request, and read the answer in another."""
    joined = client.post("/gradio_api/call/chat", json={"data": [MESSAGES, "", 4]})
    if joined.status_code != 200:
        return False
    read = client.get(f"/gradio_api/call/chat/{joined.json()['event_id']}")
    return read.status_code == 200 and "event: complete" in read.text


@pytest.fixture
def two(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with two ingresses, both ready."""

    def both_ready() -> bool:
        """Requests without a session go to either."""
        return all(cluster.get("/ready").status_code == 200 for _ in range(TRIES))

    cluster.deploy(ingress={"num_replicas": 2})
    cluster.wait(lambda: len(cluster.processes("ingress")) == 2, START_S, "two ingresses")
    cluster.wait(both_ready, START_S, "ready")
    yield cluster
    cluster.deploy(ingress={"num_replicas": 1})
    cluster.wait(lambda: len(cluster.processes("ingress")) == 1, START_S, "one ingress")


def test_two_ingresses_serve_the_api_and_kept_sessions(two: Cluster) -> None:
    with httpx.Client(base_url=two.url, timeout=60) as client:
        body = {"messages": MESSAGES, "max_tokens": 4}
        asked = [client.post("/v1/chat/completions", json=body).status_code for _ in range(TRIES)]
        assert asked == [200] * TRIES
        without = [page_is_answered(client) for _ in range(TRIES)]
        assert not all(without), "if pages work on any ingress, the docs are wrong"
    for number in range(4):
        headers = {"x-session-id": f"visitor {number}"}
        with httpx.Client(base_url=two.url, timeout=60, headers=headers) as client:
            assert all(page_is_answered(client) for _ in range(4))
