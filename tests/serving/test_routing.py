"""A follow-up goes to the replica that holds its conversation."""

import httpx
import pytest

from hfjax_app.serving.rendezvous import weight

from .conftest import SLOTS, Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROUTER = "hfjax_app.serving.replica_router.ReplicaRouter"
CONVERSATIONS, TURNS = SLOTS, 6  # one replica could hold all of them


def cached_share(cluster: Cluster, name: str) -> float:
    """The share of follow-ups for which nothing was computed that their conversation had before; they take turns."""
    history = [[{"role": "system", "content": f"You are {name} {number}."}] for number in range(CONVERSATIONS)]
    before, hits = [0] * CONVERSATIONS, 0  # tokens of a conversation's last prompt
    for turn in range(TURNS):
        for number, messages in enumerate(history):
            messages.append({"role": "user", "content": f"Say the word {turn} for {name} {number}, please."})
            body = {"messages": messages, "max_tokens": 6, "temperature": 0.0}
            answer = httpx.post(f"{cluster.url}/v1/chat/completions", json=body, timeout=120).json()
            messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
            usage = answer["usage"]
            hits += bool(turn) and usage["prompt_tokens_details"]["cached_tokens"] >= before[number]
            before[number] = usage["prompt_tokens"]
    return hits / (CONVERSATIONS * (TURNS - 1))


def test_follow_ups_find_their_conversation(cluster: Cluster) -> None:
    """With routing by conversation they do; without it, one in as many as there are replicas."""
    cluster.wait_idle()
    arguments = {"places": SLOTS, "by_session": False}
    cluster.deploy(chat={"request_router_config": {"request_router_class": ROUTER, "request_router_kwargs": arguments}})
    cluster.wait_ready()
    without = cached_share(cluster, "Bob")
    cluster.deploy(chat={"request_router_config": None})
    cluster.wait_ready()
    by_conversation = cached_share(cluster, "Ann")
    print(f"cached share of {CONVERSATIONS * (TURNS - 1)} follow-ups: {by_conversation:.2f}, {without:.2f} without")
    assert by_conversation >= 0.9
    assert without <= 0.8


def test_only_the_sessions_of_a_replica_that_goes_move() -> None:
    sessions, replicas = [f"session {number}" for number in range(500)], ["a", "b", "c", "d"]

    def owners(present: list[str]) -> dict[str, str]:
        return {session: max(present, key=lambda replica: weight(session, replica)) for session in sessions}

    before, after = owners(replicas), owners(replicas[1:])
    assert {session for session in sessions if before[session] != after[session]} == {
        session for session in sessions if before[session] == "a"
    }
    assert all(90 < [*before.values()].count(replica) < 160 for replica in replicas)
