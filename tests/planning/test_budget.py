"""The check of all models at the app's start: models that do not fit are named before loading, with advice."""

from pathlib import Path
from typing import Any

import pytest

from hfjax_app.backends import Backends
from hfjax_app.planning.budget import refusals
from hfjax_app.planning.together import planner_of
from hfjax_app.planning.topology import MARGIN
from hfjax_app.settings import load_settings
from tests.sentiment.conftest import save, word_tokenizer

MODELS = {"chat": "chat-llama", "sentiment": "sentiment", "image": "images"}
OPTIONS: dict[str, Any] = {"slots": 4, "context": 512, "dtype": "bfloat16", "quantize": "none"}


def memory_for(size: int) -> int:
    """The memory of a device that has just enough for `size` bytes."""
    return int(size / (1 - MARGIN)) + 1


def test_models_fit_together_or_the_one_that_does_not_is_named() -> None:
    """If 1,000 bytes are missing, one slot less for chat makes room for the last model.

    The copy of chat while one of its four slots decodes must fit too: the only bucket that is worth it here.
    """
    chat = planner_of("chat", MODELS["chat"], **OPTIONS).estimate(2)
    assert chat.held == chat.weights + chat.cache * 5 // 4
    size = chat.held + sum(planner_of(kind, MODELS[kind], **OPTIONS).weights for kind in ("sentiment", "image"))
    assert refusals(MODELS, devices=2, memory=memory_for(size), **OPTIONS) == {}
    refused = refusals(MODELS, devices=2, memory=memory_for(size - 1000), **OPTIONS)
    assert list(refused) == ["image"]
    for words in (
        "image model 'images' does not fit",
        "beside the chat model 'chat-llama'",
        "'sentiment'",
        "slots = 3",
    ):
        assert words in refused["image"]
    assert "\n" not in refused["image"]


def test_a_model_that_can_not_be_read_is_left_out(tmp_path: Path) -> None:
    assert refusals({"image": str(tmp_path)}, devices=1, memory=1, **OPTIONS) == {}


def test_an_error_of_a_library_affects_one_model_only(tmp_path: Path) -> None:
    """A tokenizer that truncates to -1 tokens raises an OverflowError; it kept all models from being loaded."""
    save(tmp_path)
    word_tokenizer(-1).save_pretrained(tmp_path)
    models = {"sentiment": str(tmp_path), "image": "images"}
    assert list(refusals(models, devices=1, memory=1, **OPTIONS)) == ["image"]


def test_models_that_do_not_fit_are_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an accelerator of 1 MB; CPU devices are not checked."""
    monkeypatch.setattr("hfjax_app.runtime.mesh.accelerator_memory", lambda: 1_000_000)
    backends = Backends(load_settings()).start()
    assert backends.wait(timeout=280)
    assert [(backend.state, backend.reports) for backend in backends.all] == [("failed", [])] * 3
    for backend, model in zip(backends.all, ("chat-gemma", "sentiment", "images"), strict=True):
        assert f"model '{model}' does not fit: it needs " in backend.error
        assert "would fit: " in backend.error
