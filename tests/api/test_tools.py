"""Calls of tools through OpenAI's client, on a small model whose template takes tools."""

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from openai import APIStatusError, AsyncOpenAI

from hfjax_app.api.v1.routes import api_router
from hfjax_app.backends import Backends
from hfjax_app.service.service import Service
from hfjax_app.settings import load_settings
from tests.chat.conftest import make_model, make_tokenizer
from tests.chat.text.test_tools import TEMPLATE
from tests.chat.vision.checkpoints import drawn, png
from tests.conftest import quickly_compiled

ASKED = [{"role": "user", "content": "Hi"}]
PICTURE = {
    "type": "image_url",
    "image_url": {"url": f"data:image/png;base64,{base64.b64encode(png(drawn(1))).decode()}"},
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
            "$defs": {"city": {"enum": ["Ulm", "Rom"]}},
        },
    },
}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FastAPI]:
    folder = tmp_path_factory.mktemp("tools")
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder / "small")
    make_model("llama").save_pretrained(folder / "small")
    nothing = str(folder / "nothing")
    models = {"chat_model": str(folder / "small"), "sentiment_model": nothing, "image_model": nothing}
    with quickly_compiled():
        backends = Backends(load_settings(**models, slots=1, context=1024)).start()
        assert backends.wait(timeout=300)
        app = FastAPI()
        app.include_router(api_router(Service(backends)))
        yield app
        backends.stop()


@asynccontextmanager
async def client_of(app: FastAPI) -> AsyncIterator[AsyncOpenAI]:
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app))
    async with AsyncOpenAI(base_url="http://here/v1", api_key="none", max_retries=0, http_client=http) as client:
        yield client


def asking(app: FastAPI, ask: Callable[[Callable[..., Awaitable[Any]]], Awaitable[Any]]) -> Any:
    """What `ask` returns, which is given the client's function to create a completion."""

    async def run() -> Any:
        async with client_of(app) as client:
            options = {"model": "small", "temperature": 0, "tools": [WEATHER], "messages": ASKED}
            return await ask(lambda **change: client.chat.completions.create(**options | change))

    return asyncio.run(run())


def test_a_call_that_must_be_made(app: FastAPI) -> None:
    """Whole and streamed; its result goes back in."""

    async def ask(create: Callable[..., Awaitable[Any]]) -> tuple[Any, list[Any], Any]:
        whole = (await create(tool_choice="required")).choices[0]
        named = {"type": "function", "function": {"name": "weather"}}
        events = [event async for event in await create(tool_choice=named, stream=True)]
        result = {"role": "tool", "tool_call_id": whole.message.tool_calls[0].id, "content": "Rain."}
        talk = [*ASKED, whole.message, result]
        return whole, events, (await create(messages=talk, extra_body={"guided_regex": "[a-z]{4}"})).choices[0]

    whole, events, after = asking(app, ask)
    [call] = whole.message.tool_calls
    assert (whole.finish_reason, whole.message.content, call.function.name) == ("tool_calls", None, "weather")
    asked = json.loads(call.function.arguments)
    assert asked["city"] in ("Ulm", "Rom")
    assert 1 <= asked["days"] <= 9
    deltas = [delta for event in events for delta in event.choices[0].delta.tool_calls or []]
    assert [(delta.index, delta.function.arguments) for delta in deltas] == [(0, call.function.arguments)]
    assert events[-1].choices[0].finish_reason == "tool_calls"
    assert re.fullmatch("[a-z]{4}", after.message.content)


@pytest.mark.parametrize(("several", "count"), [(True, 2), (False, 1)])
def test_calls_in_a_text(app: FastAPI, several: bool, count: int) -> None:
    call = r'<tool_call>\{"name": "a", "arguments": \{"n": [1-9]\}\}</tool_call>'
    regex = {"guided_regex": f"So: {call}{call}"}
    said = asking(app, lambda create: create(parallel_tool_calls=several, extra_body=regex)).choices[0]
    assert (said.message.content, said.finish_reason) == ("So:", "tool_calls")
    assert [found.function.name for found in said.message.tool_calls] == ["a"] * count
    none = asking(app, lambda create: create(tool_choice="none", extra_body=regex)).choices[0]
    assert (none.message.tool_calls, none.finish_reason) == (None, "stop")
    assert none.message.content.count("<tool_call>") == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "there is no such tool"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "leaves no other form"),
        ({"tools": [WEATHER, WEATHER]}, "two of them have the name"),
        ({"messages": [*ASKED, {"role": "tool", "content": "x", "tool_call_id": "y"}]}, "of a call before it"),
        ({"messages": [{"role": "user", "content": [PICTURE]}]}, "this model answers to text only"),
    ],
)
def test_what_is_wrong_is_refused(app: FastAPI, change: dict[str, Any], said: str) -> None:
    with pytest.raises(APIStatusError, match=said) as refused:
        asking(app, lambda create: create(**change))
    assert refused.value.status_code == 400
