"""The API finds its endpoints by itself. No model is loaded here."""

import asyncio
import inspect
import sys
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from gradio.utils import get_return_types

import hfjax_app.api
from hfjax_app.api.chat import ChatApi
from hfjax_app.api.images import ImagesApi
from hfjax_app.backends import Backends
from hfjax_app.service.service import Service
from hfjax_app.settings import Settings
from hfjax_app.studio.page import add_endpoints

ALL = {"chat", "classify", "explain", "zero_shot", "generate", "replay"}
ALL |= {"load_model", "unload_model", "cancel_load"}


def registered() -> set[str]:
    """The names of the endpoints, for models that are never started."""

    async def build() -> set[str]:  # Gradio asks for the event loop, and would leave one open
        with gr.Blocks() as blocks:
            add_endpoints(Service(Backends(Settings())))
        return {str(function.api_name) for function in blocks.fns.values()}

    return asyncio.run(build())


def test_every_module_is_found() -> None:
    assert registered() == ALL


def test_a_streamed_endpoint_is_documented_by_the_type_of_one_item() -> None:
    """Gradio documents an endpoint by its return annotation; that of a generator would name the generator."""
    for endpoint in (ChatApi.chat, ImagesApi.generate, ImagesApi.replay):
        assert get_return_types(endpoint) == [dict[str, Any]]
        assert "self" in inspect.signature(endpoint).parameters


def test_one_file_is_an_endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "greeting.py").write_text(
        "import gradio as gr\n\n\n"
        "async def greet(name: str) -> str:\n    return f'Hello {name}'\n\n\n"
        "def register(service):\n    gr.api(greet, api_name='greet')\n"
    )
    monkeypatch.setattr(hfjax_app.api, "__path__", [*hfjax_app.api.__path__, str(tmp_path)])
    names = registered()
    del sys.modules["hfjax_app.api.greeting"]
    assert names == {*ALL, "greet"}
