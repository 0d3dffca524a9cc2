"""Requests that no browser sends: rejected in one line, with nothing computed or compiled."""

import json
import math
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from .conftest import LIMIT_S, Studio, http

HELLO = [{"role": "user", "content": "Hello!"}]
CHAT = {
    "messages": HELLO,
    "system_prompt": "",
    "max_tokens": 8,
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "seed": None,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "stop": None,
}
GENERATE = {
    "prompt": "a red circle",
    "negative_prompt": "",
    "steps": 2,
    "guidance_scale": 7.5,
    "seed": 1,
    "images": 1,
    "width": None,
    "height": None,
    "scheduler": None,
    "image": None,
    "mask": None,
    "strength": 0.8,
    "model": None,
    "background": "#ffffff",
    "variation_of": None,
    "variation": 0.3,
    "softness": 1.0,
    "region": "whole",
    "expand": "",
}
NO_PICTURE = "data:image/png;base64,aGVsbG8="
SURROGATE = "half \ud800 a pair"


def call(studio: Studio, name: str, *values: Any) -> tuple[str, Any]:
    """Call an endpoint as curl would: the last event's name ("complete" or "error") and its data."""
    return ended(studio, name, post(studio, name, *values))


def post(studio: Studio, name: str, *values: Any) -> httpx.Response:
    body = json.dumps({"data": values})  # not httpx's json=, which rejects NaN
    url, headers = f"{studio.url}/gradio_api/call/{name}", {"content-type": "application/json"}
    return http.post(url, content=body, headers=headers)


def ended(studio: Studio, name: str, joined: httpx.Response) -> tuple[str, Any]:
    assert joined.status_code == 200, joined.text
    url = f"{studio.url}/gradio_api/call/{name}"
    with http.stream("GET", f"{url}/{joined.json()['event_id']}") as stream:
        lines = [line for line in stream.iter_lines() if line.strip()]
    event, data = lines[-2].removeprefix("event: "), lines[-1].removeprefix("data: ")
    return event, json.loads(data)


@pytest.fixture(scope="module", autouse=True)
def _nothing_computed_or_compiled(studio: Studio) -> Iterator[None]:
    """Rejected requests reach no engine, and valid ones compile nothing."""
    studio.wait_idle()
    before = studio.health()
    yield
    studio.wait_idle()
    after = studio.health()
    assert after["compilations"] == before["compilations"]
    assert after["chat_engine"]["requests"] - before["chat_engine"]["requests"] == 2, "the good ones"


def rejected(studio: Studio, name: str, *values: Any) -> str:
    """The line that says what is wrong: with status 422, or at the end of a call where finding out takes long."""
    joined = post(studio, name, *values)
    if joined.status_code == 200:
        event, data = ended(studio, name, joined)
        assert event == "error", data
        says = data["error"]
    else:
        assert joined.status_code == 422, joined.text
        says = joined.json()["detail"]
    assert isinstance(says, str), says
    assert "\n" not in says
    assert "Traceback" not in says
    return says


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("messages", None, "conversation must be a list"),
        ("messages", "Hello!", "conversation must be a list"),
        ("messages", [], "not empty"),
        ("messages", [1, None], "needs a role"),
        ("messages", [{"role": "system", "content": "x"}], "needs a role"),
        ("messages", [{"role": "user", "content": ""}], "message is empty"),
        ("messages", [{"role": "user", "content": 5}], "must be text"),
        ("messages", [{"role": "user", "content": "a\0b"}], "NUL"),
        ("messages", [{"role": "user", "content": SURROGATE}], "surrogate"),
        ("messages", [{"role": "user", "content": "x" * 30_000}], "at most 20,000"),
        ("system_prompt", None, "system prompt: must be text"),
        ("max_tokens", 0, "max tokens = 0"),
        ("max_tokens", -1, "max tokens = -1"),
        ("max_tokens", 10**9, "max tokens = 1000000000"),
        ("max_tokens", "many", "max tokens = 'many'"),
        ("temperature", math.nan, "temperature = nan"),
        ("temperature", math.inf, "temperature = inf"),
        ("temperature", -1, "temperature = -1"),
        ("top_p", 0, "top-p = 0"),
        ("top_p", 2, "top-p = 2"),
        ("top_k", -1, "top-k = -1"),
        ("seed", -1, "seed = -1"),
        ("seed", 2**64, f"seed = {2**64}"),
        ("min_p", 1.5, "min-p = 1.5"),
        ("min_p", "much", "min-p = 'much'"),
        ("repetition_penalty", 0, "repetition penalty = 0"),
        ("repetition_penalty", math.inf, "repetition penalty = inf"),
    ],
)
def test_bad_chats(studio: Studio, field: str, value: Any, says: str) -> None:
    assert says in rejected(studio, "chat", *{**CHAT, field: value}.values())


@pytest.mark.parametrize("text", ["", " \n", None, 7, ["a"], "a\0b", SURROGATE, "x" * 1_000_000])
def test_bad_texts(studio: Studio, text: Any) -> None:
    rejected(studio, "classify", text)
    rejected(studio, "explain", text, None)


@pytest.mark.parametrize("label", ["angry", 7, ["positive"]])
def test_bad_labels(studio: Studio, label: Any) -> None:
    assert "must be one of negative, neutral, positive" in rejected(studio, "explain", "I loved it", label)


@pytest.mark.parametrize("labels", [None, "a, b", [], ["a"], ["a", ""], ["a", 7], ["a", "A"], [["a"], "b"], ["a"] * 99])
def test_bad_zero_shot_labels(studio: Studio, labels: Any) -> None:
    assert "label" in rejected(studio, "zero_shot", "text", labels)


@pytest.mark.parametrize("file", [None, "x", {"path": 7}, {"path": "/etc/passwd"}, {"path": "../../etc/passwd"}])
def test_files_that_were_never_uploaded(studio: Studio, file: Any) -> None:
    """The client sends the path of the file to classify; only uploaded files are opened."""
    event = page_events(studio)["_run"]
    session = f"files-{abs(hash(str(file)))}"
    data = [None, "" if file is None else "text", file, True, "line", ""]
    body = {"data": data, "fn_index": event, "session_hash": session}
    joined = http.post(f"{studio.url}/gradio_api/queue/join", json=body)
    assert joined.status_code == 200, joined.text
    with http.stream("GET", f"{studio.url}/gradio_api/queue/data", params={"session_hash": session}) as stream:
        messages = [json.loads(line.removeprefix("data: ")) for line in stream.iter_lines() if line.startswith("data:")]
    [done] = [message for message in messages if message["msg"] == "process_completed"]
    assert not done["success"]
    assert "root:" not in json.dumps(messages)
    log = studio.output.read_text()
    assert "Traceback" not in log
    assert "etc/passwd" not in log, "a value that a visitor sent"


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("prompt", "", "prompt is empty"),
        ("prompt", None, "prompt: must be text"),
        ("prompt", SURROGATE, "surrogate"),
        ("negative_prompt", 3, "negative prompt: must be text"),
        ("steps", 0, "steps = 0"),
        ("steps", 10**9, "steps = 1000000000"),
        ("steps", 2.5, "steps = 2.5"),
        ("guidance_scale", math.nan, "guidance scale = nan"),
        ("guidance_scale", -math.inf, "guidance scale = -inf"),
        ("seed", -1, "seed = -1"),
        ("seed", 2**64, f"seed = {2**64}"),
        ("images", 5, "images = 5"),
        ("width", 100, "width = 100: must be a multiple of 8"),
        ("height", 10**9, "height = 1000000000"),
        ("scheduler", "best", "scheduler = 'best': must be one of"),
        ("image", "/etc/passwd", "image: must be a data URL in base64"),
        ("image", {"path": "/etc/passwd"}, "image: must be a data URL, not dict"),
        ("image", NO_PICTURE, "image can't be read as a PNG"),
        ("mask", NO_PICTURE, "mask can't be read as a PNG"),
        ("strength", math.nan, "strength = nan"),
        ("background", "white", "background = 'white': must be a colour"),
        ("softness", 9, "softness = 9: must be a number from 0 to 8"),
        ("region", "half", "region = 'half': must be whole or marked"),
        ("region", ["half"], "region = ['half']"),
        ("expand", "64", "expand = '64': must be the pixels left, right, up and down"),
        ("expand", "64,0,0,0", "expand: there is no picture to enlarge"),
    ],
)
def test_bad_pictures(studio: Studio, field: str, value: Any, says: str) -> None:
    assert says in rejected(studio, "generate", *{**GENERATE, field: value}.values())


def test_bad_replays(studio: Studio) -> None:
    assert "must be a data URL, not NoneType" in rejected(studio, "replay", None, None, None)
    assert "picture can't be read as a PNG" in rejected(studio, "replay", NO_PICTURE, None, None)


def test_good_calls(studio: Studio) -> None:
    event, [reply] = call(studio, "chat", *CHAT.values())
    assert event == "complete"
    assert reply["text"]
    assert 1 <= reply["tokens"] <= 8
    event, [reply] = call(studio, "chat", *{**CHAT, "max_tokens": None}.values())
    assert event == "complete"
    assert reply["finish_reason"] == "stop", "the limit is the tab's"
    assert httpx.head(f"{studio.url}/health").status_code == 200
    event, [scores] = call(studio, "classify", "I loved it")
    assert event == "complete"
    assert max(scores, key=scores.get) == "positive"
    event, [reason] = call(studio, "explain", "I loved it", "negative")
    assert event == "complete"
    assert [word for word, value in reason["words"] if value is not None] == ["I", "loved", "it"]
    assert dict(reason["words"])["loved"] < 0
    event, [shares] = call(studio, "zero_shot", "What a great film!", ["praise", "bug report"])
    assert event == "complete"
    assert list(shares) == ["praise", "bug report"]
    assert sum(shares.values()) == pytest.approx(1)
    event, [pictures] = call(studio, "generate", *{**GENERATE, "images": 2}.values())
    assert event == "complete"
    assert pictures["seeds"] == [1, 2]
    assert all(image.startswith("data:image/png;base64,") for image in pictures["images"])
    event, [comparison] = call(studio, "replay", pictures["images"][1], None, None)
    assert event == "complete"
    assert comparison["identical"], comparison


def page_events(studio: Studio) -> dict[str, int]:
    """The page's own events: name of the function -> number."""
    dependencies = http.get(f"{studio.url}/config").json()["dependencies"]
    return {
        dependency["api_name"]: dependency["id"]
        for dependency in dependencies
        if dependency["queue"] is not False and dependency["api_name"]
    }


@pytest.mark.parametrize(
    "history", [None, "x", [1], [{"role": "user"}], [{"role": "user", "content": [{"path": "/etc/passwd"}]}]]
)
def test_the_pages_own_events_reject_what_no_page_sends(studio: Studio, history: Any) -> None:
    """They are not in the API, but any client can send to the queue. No file is read, and the server goes on."""
    event = page_events(studio)["_ask"]
    dependencies = http.get(f"{studio.url}/config").json()["dependencies"]
    [inputs] = [dependency["inputs"] for dependency in dependencies if dependency["id"] == event]
    data = ["", history, *[None] * (len(inputs) - 2)]
    session = "raw"
    joined = http.post(
        f"{studio.url}/gradio_api/queue/join", json={"data": data, "fn_index": event, "session_hash": session}
    )
    assert joined.status_code == 200, joined.text
    with http.stream(
        "GET", f"{studio.url}/gradio_api/queue/data", params={"session_hash": session}, timeout=LIMIT_S
    ) as stream:
        messages = [json.loads(line.removeprefix("data: ")) for line in stream.iter_lines() if line.startswith("data:")]
    [done] = [message for message in messages if message["msg"] == "process_completed"]
    assert not done["success"]
    assert "root:" not in json.dumps(messages)
    log = studio.output.read_text()
    assert "Traceback" not in log
    assert "etc/passwd" not in log, "a value that a visitor sent"


def test_no_request_bypasses_the_queue(studio: Studio) -> None:
    """Gradio's direct routes would bypass every limit."""
    for route in ("run", "api"):
        response = http.post(f"{studio.url}/gradio_api/{route}/chat", json={"data": list(CHAT.values())})
        assert response.status_code == 404, response.text


def test_huge_bodies_are_rejected(studio: Studio) -> None:
    url = f"{studio.url}/gradio_api/call/classify"
    assert http.post(url, content=b"x" * (17 << 20)).status_code == 413

    def chunks() -> Iterator[bytes]:
        for _ in range(17):
            yield b"x" * (1 << 20)

    try:
        status = http.post(url, content=chunks()).status_code  # of unknown length
    except httpx.TransportError:
        return  # cut off in the middle, which is a rejection too
    assert status >= 400


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("call/chat", {"data": [[{"role": "user", "content": "x", "y": [[]] * 50_000}]]}),
        ("call/v2/chat", {"messages": [{"role": "user", "content": "x", "y": [[]] * 50_000}]}),
        ("queue/join", {"data": ["x"], "event_data": [0] * 50_000}),
    ],
)
def test_events_of_many_values_are_rejected(studio: Studio, path: str, body: dict[str, Any]) -> None:
    """Gradio looks for files in each of them, for a second on the event loop."""
    if path == "queue/join":
        known = http.get(f"{studio.url}/config").json()["dependencies"]
        [number] = [each["id"] for each in known if each["api_name"] == "_classify"]
        body = body | {"fn_index": number, "session_hash": "many"}
    answer = http.post(f"{studio.url}/gradio_api/{path}", json=body)
    assert (answer.status_code, "of more than 50,000 values" in answer.text) == (422, True)


def test_large_uploads_are_rejected(studio: Studio) -> None:
    """Above the 10 MB that lists of texts and pictures may have."""
    response = http.post(f"{studio.url}/gradio_api/upload", files={"files": ("big.bin", b"x" * (11 << 20))})
    assert response.status_code == 413
