"""The budget of all models at the app's start: by name, before anything is loaded, with the plan's advice."""

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


def memory_for(need: int) -> int:
    """What a device must have, so that it can take just this."""
    return int(need / (1 - MARGIN)) + 1


def test_models_fit_together_or_the_one_that_does_not_is_named() -> None:
    """Where 1,000 bytes are missing, one slot less for chat makes room for the model that comes last.

    What chat copies while two of its four slots decode must have room too; it was left out.
    """
    chat = planner_of("chat", MODELS["chat"], **OPTIONS).estimate(2)
    assert chat.held == chat.weights + chat.cache * 3 // 2
    need = chat.held + sum(planner_of(kind, MODELS[kind], **OPTIONS).weights for kind in ("sentiment", "image"))
    assert refusals(MODELS, devices=2, memory=memory_for(need), **OPTIONS) == {}
    refused = refusals(MODELS, devices=2, memory=memory_for(need - 1000), **OPTIONS)
    assert list(refused) == ["image"]
    for words in (
        "image model 'images' does not fit",
        "beside the chat model 'chat-llama'",
        "'sentiment'",
        "slots = 3",
    ):
        assert words in refused["image"]
    assert "\n" not in refused["image"]


def test_a_model_that_can_not_be_read_fails_for_itself(tmp_path: Path) -> None:
    assert refusals({"image": str(tmp_path)}, devices=1, memory=1, **OPTIONS) == {}


def test_what_a_library_raises_over_a_model_is_its_own_failure(tmp_path: Path) -> None:
    """A tokenizer that cuts texts to -1 tokens raises an OverflowError; no model of the app was loaded for that."""
    save(tmp_path)
    word_tokenizer(-1).save_pretrained(tmp_path)
    models = {"sentiment": str(tmp_path), "image": "images"}
    assert list(refusals(models, devices=1, memory=1, **OPTIONS)) == ["image"]


def test_nothing_is_loaded_of_models_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an accelerator of 1 MB; CPU devices are not asked."""
    monkeypatch.setattr("hfjax_app.runtime.mesh.accelerator_memory", lambda: 1_000_000)
    backends = Backends(load_settings()).start()
    assert backends.wait(timeout=120)
    assert [(backend.state, backend.reports) for backend in backends.all] == [("failed", [])] * 3
    for backend, model in zip(backends.all, ("chat-gemma", "sentiment", "images"), strict=True):
        assert f"model '{model}' does not fit: it needs " in backend.error
        assert "would fit: " in backend.error
