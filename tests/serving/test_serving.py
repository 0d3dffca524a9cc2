"""The app through its ingress: the same answers as on one machine, and what happens when processes end."""

import asyncio
import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import httpx
import openai
import pytest

from .conftest import SLOTS, START_S, Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def question(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Tell me a story about a cat and {number} dogs."}]


async def streamed(
    cluster: Cluster, number: int, at_piece: asyncio.Event | None = None, tokens: int = 200
) -> tuple[str, str]:
    """The text of an answer, and the error that ended it or ""."""
    text = ""
    async with openai.AsyncOpenAI(base_url=f"{cluster.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        try:
            stream = await client.chat.completions.create(
                model="chat-gemma",
                messages=question(number),
                max_tokens=tokens,
                temperature=0.0,
                logit_bias={"1": -100, "5": -100},  # without the model's end tokens, all answers are as long
                stream=True,
            )
            async for chunk in stream:
                text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
                if text and at_piece is not None:
                    at_piece.set()
        except openai.APIError as error:
            return text, str(error)
    return text, ""


def test_an_openai_client_gets_one_machines_answers(cluster: Cluster) -> None:
    with openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="none") as client:
        whole = client.chat.completions.create(
            model="chat-gemma", messages=question(1), max_tokens=40, temperature=0.0, n=2, logprobs=True, top_logprobs=2
        )
        first, second = whole.choices
        assert first.message.content == second.message.content
        assert first.logprobs is not None
        tokens = "".join(each.token for each in first.logprobs.content or [])
        assert tokens.startswith(first.message.content or "none")
        stream = client.chat.completions.create(
            model="chat-gemma", messages=question(1), max_tokens=40, temperature=0.0, stream=True
        )
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
        assert "".join(pieces) == first.message.content
        assert len(pieces) > 2
        assert len(client.models.list().data) == 3


def test_every_route_answers(cluster: Cluster) -> None:
    def post(path: str, **body: object) -> httpx.Response:
        return httpx.post(f"{cluster.url}{path}", json=body, timeout=120)

    texts = ["I loved it.", "It was a bad film."] * 20
    labels = [each["label"] for each in post("/v1/classify", input=texts).json()["data"]]
    assert labels == ["positive", "negative"] * 20
    words = post("/v1/explain", input="I loved it.").json()["words"]
    assert "".join(word["text"] for word in words) == "I loved it."
    ids = post("/tokenize", prompt="I loved it.").json()["tokens"]
    assert post("/detokenize", tokens=ids).json()["prompt"].endswith("I loved it.")
    drawn = [post("/v1/images/generations", prompt="a red circle", seed=7, steps=3).json()["data"] for _ in range(2)]
    assert drawn[0] == drawn[1]


def test_answers_have_the_form_that_is_asked(cluster: Cluster) -> None:
    """A grammar is compiled in the replica."""
    colour = {"properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"]}
    whole = {"type": "object", "additionalProperties": False, **colour}
    schema = {"type": "json_schema", "json_schema": {"name": "colour", "schema": whole}}
    body = {"messages": question(1), "max_tokens": 40, "response_format": schema}
    answer = httpx.post(f"{cluster.url}/v1/chat/completions", json=body, timeout=120).json()
    assert json.loads(answer["choices"][0]["message"]["content"])["colour"] in ("red", "blue")


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": " "}]}, "is empty"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 9_999}, "at most"),
        ("/v1/completions", {"prompt": [10**9]}, "whole number"),
        ("/v1/classify", {"input": "\0"}, "NUL"),
        ("/v1/explain", {"input": "a", "label": "sour"}, "must be one of"),
        ("/v1/images/generations", {"prompt": "a", "steps": 10_000}, "steps"),
        ("/v1/images/generations", {"prompt": "a", "scheduler": "none such"}, "scheduler"),
    ],
)
def test_what_is_wrong_is_refused_as_on_one_machine(
    cluster: Cluster, path: str, body: dict[str, object], message: str
) -> None:
    refused = httpx.post(f"{cluster.url}{path}", json=body, timeout=60)
    assert refused.status_code == 400
    assert message in refused.json()["error"]["message"]
    assert "Traceback" not in refused.text


def test_no_log_has_what_was_asked(cluster: Cluster) -> None:
    """Ray logs the exceptions of replicas with their messages."""
    secret = "zyzzyva-" * 3
    for body in ({"prompt": secret}, {"prompt": secret, "scheduler": secret}):
        httpx.post(f"{cluster.url}/v1/images/generations", json={**body, "steps": 1}, timeout=60)
    httpx.post(f"{cluster.url}/v1/explain", json={"input": secret, "label": secret}, timeout=60)
    httpx.post(f"{cluster.url}/tokenize", json={"prompt": secret}, timeout=60)
    logs = [*Path("/tmp/ray/session_latest/logs").rglob("*.*"), cluster.folder / "log"]
    assert len(logs) > 10
    assert [path.name for path in logs if path.is_file() and secret in path.read_text(errors="replace")] == []


def test_metrics_have_the_replicas_names(cluster: Cluster) -> None:
    cluster.wait(
        lambda: len(cluster.samples("hfjax_tokens_total", kind="made")) == 2, START_S, "two replicas in the metrics"
    )

    def all_free() -> bool:
        return [*cluster.samples("hfjax_chat_slots", state="free").values()] == [float(SLOTS)] * 2

    cluster.wait(all_free, START_S, "free again")  # a replica's report may be older than its last answer's end
    assert sum(cluster.samples("hfjax_compilations_since_warm_up_total").values()) == 0
    health = cluster.health()
    assert health["chat_engine"]["slots"] == 2 * SLOTS
    assert health["status"] == "ready"


def test_clients_that_leave_free_their_slots(cluster: Cluster) -> None:
    """200 of them, some before and some within their answers; the replicas count what they made."""
    cluster.wait_idle()
    before = sum(cluster.samples("hfjax_tokens_total", kind="made").values())

    async def leave(client: httpx.AsyncClient, number: int) -> None:
        body = {"messages": question(number), "max_tokens": 400, "temperature": 1.0, "stream": True}
        with suppress(TimeoutError, httpx.HTTPError):
            async with (
                asyncio.timeout(0.02 + number % 20 * 0.05),
                client.stream("POST", f"{cluster.url}/v1/chat/completions", json=body) as answer,
            ):
                async for _ in answer.aiter_lines():
                    pass

    async def all_leave() -> None:
        limits = httpx.Limits(max_connections=40)
        async with httpx.AsyncClient(timeout=60, limits=limits) as client:
            await asyncio.gather(*(leave(client, number) for number in range(200)))

    asyncio.run(all_leave())
    cluster.wait_idle()
    made = sum(cluster.samples("hfjax_tokens_total", kind="made").values()) - before
    assert made < 200 * 400 / 4, "answers went on after their clients had left"
    text, error = asyncio.run(streamed(cluster, 3))
    assert (bool(text), error) == (True, "")


def test_a_killed_replica_takes_only_its_own_streams(cluster: Cluster) -> None:
    """SIGKILL in the middle of streams: others are as alone; the lost ones say so; the replica comes back."""
    cluster.wait_idle()
    most = 450

    def made() -> dict[str, float]:
        return cluster.samples("hfjax_tokens_total", kind="made")

    def alone_at(number: int) -> tuple[str, str]:
        """An answer, and the replica that made it: its conversation goes there again."""
        before = made()
        text, error = asyncio.run(streamed(cluster, number, tokens=most))
        assert error == ""
        cluster.wait(lambda: sum(made().values()) >= sum(before.values()) + most, START_S, "counted")
        after = made()  # on the other one tokens of an earlier test may be counted late
        return text, max(after, key=lambda replica: after[replica] - before[replica])

    alone: dict[int, str] = {}
    held: dict[str, list[int]] = {replica: [] for replica in made()}
    while min(map(len, held.values())) < 2:
        number = len(alone)
        alone[number], replica = alone_at(number)
        held[replica].append(number)
    [(victim, its), (_, others)] = [(replica, numbers[:2]) for replica, numbers in held.items()]

    async def interrupted() -> list[tuple[str, str]]:
        begun = asyncio.Event()
        tasks = [asyncio.create_task(streamed(cluster, number, begun, most)) for number in its]
        tasks += [asyncio.create_task(streamed(cluster, number, tokens=most)) for number in others]
        await begun.wait()
        os.kill(cluster.process("chat", victim), signal.SIGKILL)
        return await asyncio.gather(*tasks)

    found = dict(zip(its + others, asyncio.run(interrupted()), strict=True))
    lost = {number for number, (_, error) in found.items() if error}
    assert lost
    assert lost <= {*its}
    assert all("has died: ask again" in found[number][1] for number in lost)
    assert all(alone[number].startswith(text) for number, (text, _) in found.items())
    assert all(found[number][0] == alone[number] for number in found.keys() - lost)

    def is_back() -> bool:
        now = cluster.samples("hfjax_chat_slots", state="free").keys()
        return len(now) == 2 and victim not in now

    cluster.wait(is_back, START_S, "back with two replicas")
    assert asyncio.run(streamed(cluster, 0, tokens=most)) == (alone[0], "")


def test_more_than_all_can_hold_is_told_to_come_later(cluster: Cluster) -> None:
    """A quarter second of 429 is better than an hour in a line."""
    cluster.wait_idle()
    cluster.deploy(chat={"max_ongoing_requests": SLOTS, "max_queued_requests": 4})
    cluster.wait_ready()

    async def crowd() -> list[httpx.Response]:
        async with httpx.AsyncClient(timeout=300, limits=httpx.Limits(max_connections=60)) as client:
            body = {"messages": question(1), "max_tokens": 100, "temperature": 1.0}
            url = f"{cluster.url}/v1/chat/completions"
            return await asyncio.gather(*(client.post(url, json=body) for _ in range(40)))

    answers = asyncio.run(crowd())
    refused = [answer for answer in answers if answer.status_code == 429]
    assert {answer.status_code for answer in answers} == {200, 429}
    assert len(answers) - len(refused) >= 2 * SLOTS
    assert all(answer.headers["Retry-After"] == "5" for answer in refused)
    assert "enough requests wait" in refused[0].json()["error"]["message"]
    cluster.deploy(chat={"max_ongoing_requests": 2 * SLOTS + 4, "max_queued_requests": 256})
    cluster.wait_ready()
    cluster.wait_idle()


def test_the_ingress_comes_back(cluster: Cluster) -> None:
    cluster.kill_ingress()
    text, error = asyncio.run(streamed(cluster, 1))
    assert (bool(text), error) == (True, "")


def test_no_request_is_lost_while_replicas_come_and_go(cluster: Cluster) -> None:
    """Under load a rolling update replaces every process, and Ray's scaling makes one replica two, and one again.

    What goes ends its answers first.
    """
    cluster.wait_idle()
    alone = [asyncio.run(streamed(cluster, number))[0] for number in range(8)]
    quick = {"metrics_interval_s": 1, "look_back_period_s": 3, "upscale_delay_s": 1, "downscale_delay_s": 6}
    scaling = {"min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": SLOTS / 2, **quick}

    def replicas(count: int) -> bool:
        return len(cluster.samples("hfjax_chat_slots", state="free")) == count

    def settled(count: int) -> None:
        cluster.wait(lambda: replicas(count), START_S, f"{count} replicas")

    async def scaled() -> list[tuple[int, str, str]]:
        crowd, done = asyncio.Event(), asyncio.Event()
        crowd.set()

        async def client(number: int) -> list[tuple[int, str, str]]:
            """The first one asks to the end, the others while there is a crowd."""
            answers = []
            while not done.is_set() and (crowd.is_set() or number == 0):
                answers.append((number, *await streamed(cluster, number)))
            return answers

        clients = [asyncio.create_task(client(0))]
        await asyncio.to_thread(cluster.deploy, chat={"num_replicas": None, "autoscaling_config": scaling})
        await asyncio.to_thread(settled, 1)
        clients += [asyncio.create_task(client(number)) for number in range(1, 8)]
        await asyncio.to_thread(settled, 2)
        crowd.clear()
        await asyncio.to_thread(settled, 1)
        done.set()
        return [answer for task in clients for answer in await task]

    answers = asyncio.run(scaled())
    assert len(answers) > 8
    assert [error for _, _, error in answers if error] == []
    assert all(text == alone[number] for number, text, _ in answers)
