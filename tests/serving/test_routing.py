"""A follow-up goes to the replica that holds its conversation."""

import httpx
import pytest

from .conftest import SLOTS, Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROUTER = "hfjax_app.serving.replica_router.ReplicaRouter"
CONVERSATIONS, TURNS = 3 * SLOTS, 3


def cached_share(cluster: Cluster, name: str) -> float:
    """The share of follow-ups that found their conversation in a slot, over interleaved conversations."""
    history = [[{"role": "system", "content": f"You are {name} {number}."}] for number in range(CONVERSATIONS)]
    hits = asked = 0
    for turn in range(TURNS):
        for number in range(2 * SLOTS):  # as many as the replicas hold together
            history[number].append({"role": "user", "content": f"Say the word {turn} for {name} {number}, please."})
            body = {"messages": history[number], "max_tokens": 6, "temperature": 0.0}
            answer = httpx.post(f"{cluster.url}/v1/chat/completions", json=body, timeout=120).json()
            history[number].append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
            usage = answer["usage"]
            if turn:
                asked += 1
                hits += usage["prompt_tokens_details"]["cached_tokens"] > usage["prompt_tokens"] / 2
    return hits / asked


def test_follow_ups_find_their_conversation(cluster: Cluster) -> None:
    """With routing by conversation most do; without it half of them, with two replicas."""
    cluster.wait_idle()
    with_sessions = cached_share(cluster, "Ann")
    router = {"request_router_class": ROUTER, "request_router_kwargs": {"places": SLOTS, "by_session": False}}
    cluster.deploy(chat={"request_router_config": router})
    cluster.wait(lambda: cluster.get("/ready").status_code == 200, 300, "ready")
    without = cached_share(cluster, "Bob")
    router["request_router_kwargs"]["by_session"] = True
    cluster.deploy(chat={"request_router_config": router})
    print(f"cached share of follow-ups: {with_sessions:.2f} by conversation, {without:.2f} without")
    assert with_sessions >= 0.7
    assert without < with_sessions
