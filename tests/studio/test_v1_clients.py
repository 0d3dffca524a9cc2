"""Libraries on top of OpenAI's API that many programs use; `make test-all` installs them."""

import importlib.util
import json
import subprocess
import sys
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tests.studio.conftest import Studio

pytestmark = pytest.mark.slow

ASKED = "What is JAX?"


class Colour(BaseModel):
    name: Literal["red", "green", "blue"]
    shade: Literal[1, 2, 3]


@pytest.fixture(autouse=True)
def no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")


@pytest.mark.skipif(importlib.util.find_spec("langchain_openai") is None, reason="needs langchain-openai")
@pytest.mark.filterwarnings("ignore")
def test_langchain(studio: Studio) -> None:
    from langchain_openai import ChatOpenAI

    options: dict[str, Any] = {"model": "chat-gemma", "base_url": f"{studio.url}/v1", "api_key": "none"}
    chat = ChatOpenAI(**options, temperature=0, max_tokens=40)
    whole = chat.invoke(ASKED)
    assert "Python" in whole.content
    assert whole.usage_metadata["output_tokens"] > 0
    assert "".join(part.content for part in chat.stream(ASKED)) == whole.content
    structured = ChatOpenAI(**options, temperature=0, max_tokens=200).with_structured_output(Colour)
    assert isinstance(structured.invoke("A colour, please."), Colour)


LITELLM = """
import json, sys, litellm
url, asked = sys.argv[1:]
options = {"api_base": f"{url}/v1", "api_key": "none", "temperature": 0, "max_tokens": 40}
messages = [{"role": "user", "content": asked}]
whole = litellm.completion("openai/chat-gemma", messages, **options).choices[0].message.content
parts = litellm.completion("openai/chat-gemma", messages, stream=True, **options)
print(json.dumps([whole, "".join(part.choices[0].delta.content or "" for part in parts)]))
"""


@pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="needs litellm")
def test_litellm(studio: Studio) -> None:
    """In a process of its own, because it leaves an event loop open, which ends a test run with an error."""
    ran = subprocess.run([sys.executable, "-c", LITELLM, studio.url, ASKED], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    whole, streamed = json.loads(ran.stdout.splitlines()[-1])
    assert "Python" in whole
    assert streamed == whole
