"""Pictures in messages through OpenAI's client, to a model that sees; `test_tools.py` has one that does not."""

import asyncio
import base64
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from openai import APIStatusError

from hfjax_app.api.v1.routes import api_router
from hfjax_app.backends import Backends
from hfjax_app.service.service import Service
from hfjax_app.settings import load_settings
from tests.api.test_tools import client_of
from tests.chat.vision.checkpoints import checkpoint, drawn, png
from tests.conftest import quickly_compiled


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FastAPI]:
    folder = tmp_path_factory.mktemp("models")
    checkpoint("smolvlm", folder / "seeing")
    nothing = str(folder / "nothing")
    models = {"chat_model": str(folder / "seeing"), "sentiment_model": nothing, "image_model": nothing}
    with quickly_compiled():
        backends = Backends(load_settings(**models, slots=1, context=128)).start()
        assert backends.wait_for_all_models(timeout=300)
        app = FastAPI()
        app.include_router(api_router(Service(backends)))
        yield app
        backends.stop()


def url(file: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(file).decode()}"


def asked(seed: int, **image: Any) -> list[dict[str, Any]]:
    part = {"type": "image_url", "image_url": {"url": url(png(drawn(seed)))} | image}
    return [{"role": "user", "content": [part, {"type": "text", "text": "What is it?"}]}]


def ask(app: FastAPI, messages: list[dict[str, Any]], **options: Any) -> Any:
    async def run() -> Any:
        async with client_of(app) as client:
            given: dict[str, Any] = {"model": "seeing", "messages": messages, "temperature": 0, "max_tokens": 8}
            return await client.chat.completions.create(**given | options)

    return asyncio.run(run())


def test_two_pictures_get_two_answers(app: FastAPI, compilations: Any) -> None:
    """The same question; a picture asked about again gives the same answer, and nothing is compiled."""
    counted: AbstractContextManager[list[str]] = compilations()
    with counted as seen:
        one, other, again = (ask(app, asked(seed)) for seed in (1, 2, 1))
        assert one.choices[0].message.content != other.choices[0].message.content
        assert one.choices[0].message.content == again.choices[0].message.content
        assert one.usage.prompt_tokens == other.usage.prompt_tokens > 16
        assert not seen


def test_their_tokens_are_counted(app: FastAPI) -> None:
    async def run() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
            return await client.post("http://here/tokenize", json={"model": "seeing", "messages": asked(1)})

    assert asyncio.run(run()).json()["count"] == ask(app, asked(1)).usage.prompt_tokens


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ({"image_url": {"url": "http://127.0.0.1/secret.png"}}, "none is fetched"),
        ({"image_url": {"url": "file:///etc/passwd"}}, "none is fetched"),
        ({"image_url": {"url": "data:image/png;base64,***"}}, "must be a data URL in base64"),
        (
            {"image_url": {"url": url(b"GIF89a")}},
            "picture can't be read as a PNG, JPEG, WebP, GIF, TIFF, BMP or AVIF picture: it is",
        ),
        ({"image_url": {"url": url(b"x" * 11_000_000)}}, "picture of 10.5 MB: at most 10 MB"),
        ({}, "image_url: must have the url"),
        ({"image_url": "data:image/png;base64,AA"}, "image_url"),
    ],
)
def test_wrong_pictures_are_refused_by_their_fault(app: FastAPI, part: dict[str, Any], why: str) -> None:
    with pytest.raises(APIStatusError, match=why) as error:
        ask(app, [{"role": "user", "content": [{"type": "image_url"} | part]}])
    assert error.value.status_code in (400, 422)


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_only_users_show_pictures(app: FastAPI, role: str) -> None:
    messages = [{**asked(1)[0], "role": role}, {"role": "user", "content": "Hi"}]
    with pytest.raises(APIStatusError, match="the user's may have pictures") as error:
        ask(app, messages)
    assert error.value.status_code == 400


def test_too_many_are_refused_before_they_are_decoded(app: FastAPI) -> None:
    content = [{"type": "image_url", "image_url": {"url": "data:,"}}] * 9
    with pytest.raises(APIStatusError, match="messages with 9 pictures: at most 8"):
        ask(app, [{"role": "user", "content": content}])
