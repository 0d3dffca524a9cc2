"""A running studio under attack: fuzzed requests, and clients that come and go.

`make test-all` runs more of each. Counts decide, not times.
"""

import json
import math
import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from hfjax_app.limits import HTTP_MAX_BODY, UPLOADS_BYTES

from .conftest import LIMIT_S, START_S, Studio, http
from .test_api import CHAT, GENERATE, ended, post
from .test_request_log import nobody_inside

LONG = float(os.environ.get("CHURN_SECONDS", "0"))  # seconds; `make test-all` takes two minutes
ROUNDS = 1  # requests of each client at least
CLIENTS = 64
HUGE = 10**40

PATHS = [
    "/",
    "/config",
    "/health",
    "/live",
    "/ready/chat",
    "/metrics",
    "/login",
    "/logout",
    "/theme.css",
    "/gradio_api/info",
    "/gradio_api/queue/join",
    "/gradio_api/queue/data",
    "/gradio_api/call/chat",
    "/gradio_api/call/classify",
    "/gradio_api/call/v2/zero_shot",
    "/gradio_api/call/chat/0123",
    "/gradio_api/cancel",
    "/gradio_api/run/predict",
    "/gradio_api/reset",
    "/gradio_api/upload",
    "/gradio_api/upload_progress",
    "/gradio_api/file=/etc/passwd",
    "/gradio_api/heartbeat/%00",
    "/gradio_api/component_server",
    "/gradio_api/stream/a/b/1/playlist.m3u8",
    "/assets/../../etc/passwd",
    "/static/%2e%2e/%2e%2e/etc/passwd",
    "/monitoring/x",
    "/v1/models/x",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/images/generations",
    "/v1/images/edits",
    "/v1/classify",
    "/v1/explain",
    "/v1/zero_shot",
    "/v1/x",
    "/tokenize",
    "/detokenize",
]
EVENTS = [path for path in PATHS if path.startswith(("/gradio_api/queue", "/gradio_api/call", "/gradio_api/run"))]
V1 = [path for path in PATHS if path.startswith(("/v1/", "/tokenize", "/detokenize"))]
VALUES: list[Any] = [None, True, -1, 0, 1, 7, 2**63, HUGE, 1.5, math.nan, math.inf, "", "x", "\ud800", "\0", "é" * 300]
VALUES += [
    [],
    [[]],
    {},
    {"path": "/etc/passwd"},
    {"__type__": "update"},
    [{"role": "user", "content": "x"}],
    ["a", "b"],
]
KEYS = ["data", "fn_index", "session_hash", "event_id", "event_data", "trigger_id", "simple_format", "text", "labels"]
V1_KEYS = {
    "messages": [
        [{"role": "user", "content": "x"}],
        [{"role": "tool", "content": [{"type": "image_url"}]}],
        [7],
        [{}] * 2_000,
    ],
    "prompt": ["x", [5, 6], [0.5] * 400_000, [[5]], ["x"] * 400_000],
    "input": ["x", ["x", "y"], [7] * 400_000],
    "tokens": [[5, 6], [2**40], [None] * 400_000],
    "labels": [["a", "b"], ["a"] * 99, [{}] * 400_000],
    "n": [1, 5],
    "max_tokens": [1, 4, HUGE],
    "stream": [True, False],
    "stop": ["x", [""] * 9, [None] * 99],
    "logit_bias": [{"5": 1}, {"x": 1}, {str(token): None for token in range(99_999)}],
    "response_format": [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}, {}],
    "tools": [[], [{}] * 999, [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]],
    "size": ["64x64", "1x1", "x"],
    "image": ["x"],
}
HEADERS = [
    {},
    {"content-type": "application/json"},
    {"content-type": "multipart/form-data"},
    {"content-type": "multipart/form-data; boundary=x"},
    {"content-type": "text/plain; charset=utf-16"},
    {"range": "bytes=1-2-3"},
    {"range": "bytes=9-1"},
    {"origin": "null"},
    {"cookie": "hfjax-session=x; session=\x80"},
    {"authorization": "Bearer \xff"},
    {"x-forwarded-for": "' OR 1", "x-forwarded-host": "a b"},
    {"host": "]["},
    {"accept-encoding": "br;q=x"},
]


def fuzzed(rng: random.Random) -> tuple[str, str, dict[str, str], bytes]:
    """Method, path, headers and body."""
    path = rng.choice(rng.choice([PATHS, EVENTS, V1]))
    is_v1 = path in V1
    if rng.random() < 0.2:
        path += rng.choice(
            ["?session_hash=", "?session_hash=a%00", "?upload_id=1", "/", "//", "%ff", "?a[]=1&a[]=2", ";x"]
        )
    method = rng.choice(["GET", "POST", "POST", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"])
    body = {key: rng.choice(VALUES) for key in rng.sample(KEYS, rng.randrange(len(KEYS)))}
    if rng.random() < 0.5:
        body["data"] = [rng.choice(VALUES) for _ in range(rng.randrange(14))]
    if rng.random() < 0.5:
        body["fn_index"] = rng.randrange(-2, 60)
    if rng.random() < 0.5:
        body["session_hash"] = f"fuzz{rng.randrange(9)}"
    if is_v1:
        some = rng.sample([*V1_KEYS], rng.randrange(4))
        body = {key: rng.choice(V1_KEYS[key] if rng.random() < 0.7 else VALUES) for key in some} | {"max_tokens": 2}
        if rng.random() < 0.1:
            body |= {f"unknown{number}": 1 for number in range(99_999)}
    content = json.dumps(body).encode()
    match rng.randrange(8):
        case 0:
            content = content[: rng.randrange(len(content))]
        case 1:
            content = rng.randbytes(rng.randrange(99))
        case 2:
            content = b"[" * 50_000
        case 3:
            content = b'--x\r\nContent-Disposition: form-data; name="files"; filename="' + rng.randbytes(5)
        case 4:
            content = json.dumps(rng.choice(VALUES)).encode()
    return method, path, rng.choice([{"content-type": "application/json"}, rng.choice(HEADERS)]), content


def fuzz(studio: Studio, count: int, seed: int) -> None:
    rng, statuses = random.Random(seed), Counter[int]()
    before, logged = studio.health(), len(studio.output.read_text())
    with httpx.Client(timeout=LIMIT_S, base_url=studio.url) as client:
        for number in range(count):
            method, path, headers, content = fuzzed(rng)
            said = b""
            try:
                encoded = {name: value.encode("latin-1") for name, value in headers.items()}
                with client.stream(method, path, headers=encoded, content=content) as answer:
                    statuses[answer.status_code] += 1
                    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                        said = answer.read()
            except httpx.RemoteProtocolError:
                statuses[0] += 1  # not HTTP: the server has closed the connection
                continue
            about = (seed, number, method, path, headers, content[:300], answer.status_code, said[:300])
            assert answer.status_code < 500 or "Retry-After" in answer.headers, about
            assert b"Traceback" not in said, about
            assert b"root:" not in said, about
    assert statuses[0] < count / 20
    assert sum(number for status, number in statuses.items() if 400 <= status < 500) > count / 3
    studio.wait_idle()
    after = studio.health()
    assert (after["status"], after["queue"]) == ("ready", "running")
    assert after["compilations"] == before["compilations"]
    log = studio.output.read_text()[logged:]
    assert "Traceback" not in log
    assert " status=500 " not in log, [line for line in log.splitlines() if " status=500 " in line][:3]
    nobody_inside(studio)


def test_fuzzed_requests(studio: Studio) -> None:
    """1,320 of 5,000 ended with a 5xx, and some stopped the queue."""
    fuzz(studio, 300, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [2, 3])
def test_many_fuzzed_requests(studio: Studio, seed: int) -> None:
    fuzz(studio, 5_000, seed)


def wrong_values() -> Iterator[tuple[str, dict[str, Any], str, Any, str]]:
    """Endpoint, its right arguments, the wrong one, its value, and what the answer says."""
    numbers = {
        "max_tokens": (0, 10**6),
        "temperature": (-0.1, 10.1),
        "top_p": (0, 1.1),
        "top_k": (-1, 2**31),
        "seed": (-1, 2**64),
        "min_p": (-0.1, 1.1),
        "repetition_penalty": (0, 11),
    }
    pictures = {
        "steps": (0, 101),
        "guidance_scale": (-1, 21),
        "seed": (-1, 2**64),
        "images": (0, 5),
        "strength": (-1, 2),
    }
    pictures |= {"width": (8, 4096), "height": (8, 4096)}
    for endpoint, right, ranges in (("chat", CHAT, numbers), ("generate", GENERATE, pictures)):
        for name, (below, above) in ranges.items():
            said = name.replace("_", "-" if name.startswith(("top", "min")) else " ")
            for value in (below, above, math.nan, math.inf, -math.inf, "x", [], {}, True, HUGE):
                yield endpoint, right, name, value, said
    for endpoint, right, texts in (
        ("chat", CHAT, {"system_prompt": "system prompt", "messages": "message", "stop": "stop"}),
        ("generate", GENERATE, {"prompt": "prompt", "negative_prompt": "negative prompt", "scheduler": "scheduler"}),
        ("generate", GENERATE, {"background": "background"}),
        ("classify", {"text": "x"}, {"text": "text"}),
        ("zero_shot", {"text": "x", "labels": ["a", "b"]}, {"text": "text", "labels": "label"}),
    ):
        for name, said in texts.items():
            for value in (7, [7], {"a": 1}, True, "x" * 70_000, ["x" * 70_000] * 20):
                yield endpoint, right, name, value, "conversation" if name == "messages" and value != [7] else said


def test_every_parameter_is_refused_by_name(studio: Studio) -> None:
    before = studio.health()
    for endpoint, right, name, value, says in wrong_values():
        answer = post(studio, endpoint, *{**right, name: value}.values())
        about = (endpoint, name, str(value)[:50], answer.status_code, answer.text[:300])
        assert answer.status_code == 422, about
        assert says in answer.json()["detail"].lower() or "role" in answer.json()["detail"], about
        assert len(answer.text) < 700, about
    for endpoint in ("chat", "generate", "classify", "explain", "zero_shot", "replay"):
        missing = http.post(f"{studio.url}/gradio_api/call/v2/{endpoint}", json={})
        assert (missing.status_code, "is missing" in missing.text) == (422, True)
    after = studio.health()
    assert after["compilations"] == before["compilations"]
    assert after["chat_engine"]["requests"] == before["chat_engine"]["requests"]


@pytest.mark.timeout(LONG + START_S)
def test_clients_come_and_go(studio: Studio) -> None:
    """64 clients, each with an address of its own; 30 % leave in the middle. The others get what they get alone."""
    words = ["cat", "fox", "sea", "moon", "tea", "tree"]
    messages = [[{"role": "user", "content": f"Tell me about a {word}."}] for word in words]
    arguments = [("", tokens, 0.0) for tokens in (4, 12, 24)]
    solo = {
        (which, length): ended(studio, "chat", post(studio, "chat", messages[which], *arguments[length]))[1][0]["text"]
        for which in range(len(words))
        for length in range(len(arguments))
    }
    counts, wrong = Counter[str](), list[object]()
    ends = time.monotonic() + LONG

    def client(number: int) -> None:
        rng = random.Random(number)
        transport = httpx.HTTPTransport(local_address=f"127.0.1.{number + 1}")
        url = f"{studio.url}/gradio_api/call/chat"
        with httpx.Client(transport=transport, timeout=LIMIT_S) as http:
            done = 0
            while done < ROUNDS or time.monotonic() < ends:
                which, length = rng.randrange(len(words)), rng.randrange(len(arguments))
                try:
                    joined = http.post(url, json={"data": [messages[which], *arguments[length]]})
                    done += joined.status_code == 200
                    if joined.status_code == 429:
                        counts["refused"] += 1
                        time.sleep(0.2)
                        continue
                    assert joined.status_code == 200, joined.text
                    lines: list[str] = []
                    leaves = rng.randrange(6) if rng.random() < 0.3 else 10**9
                    with http.stream("GET", f"{url}/{joined.json()['event_id']}") as stream:
                        for line in stream.iter_lines():
                            lines.append(line)
                            if len(lines) > leaves:
                                break
                    if len(lines) > leaves:
                        counts["left"] += 1
                        continue
                    said = json.loads([line for line in lines if line][-1].removeprefix("data: "))
                    assert said[0]["text"] == solo[which, length], (which, length, said)
                    counts["stayed"] += 1
                except BaseException as error:
                    wrong.append(error)
                    return

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert counts["stayed"] + counts["left"] >= CLIENTS * ROUNDS
    assert counts["stayed"] > CLIENTS / 4
    assert counts["left"] > CLIENTS / 10
    studio.wait_idle()
    nobody_inside(studio)
    assert studio.health()["status"] == "ready"


def test_what_is_announced_and_not_sent_takes_no_share(studio: Studio) -> None:
    """An upload takes a share only as long as it could still come; the others would be locked out by headers alone."""
    port, stranger = int(studio.url.rsplit(":", 1)[1]), ("127.0.0.77", 0)
    lines = ("POST /gradio_api/upload HTTP/1.1", "Host: x", "Content-Type: multipart/form-data; boundary=x")
    head = "\r\n".join((*lines, f"Content-Length: {HTTP_MAX_BODY}", "", "--x")).encode()
    coming = [
        socket.create_connection(("127.0.0.1", port), source_address=stranger)
        for _ in range(UPLOADS_BYTES // HTTP_MAX_BODY)
    ]
    for each in coming:
        each.sendall(head)
    with httpx.Client(transport=httpx.HTTPTransport(local_address=stranger[0]), timeout=LIMIT_S) as client:

        def status() -> int:
            files = {"files": ("a.txt", b"one", "text/plain")}
            return client.post(f"{studio.url}/gradio_api/upload", files=files).status_code

        assert status() == 429
        for each in coming:
            each.close()
        deadline = time.monotonic() + LIMIT_S
        while (found := status()) == 429:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert found == 200
