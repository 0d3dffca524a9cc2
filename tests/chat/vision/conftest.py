"""Engines of tiny models with eyes, shared by the tests."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from transformers import PreTrainedModel

from hfjax_app.chat import ChatEngine
from tests.chat.vision.checkpoints import checkpoint
from tests.conftest import quickly_compiled

OPTIONS: dict[str, Any] = {"slots": 4, "context": 256, "prefill_chunk": 8, "buckets": [1], "end_tokens": ()}
OPTIONS["picture_tokens"] = (16,)

Made = tuple[ChatEngine, PreTrainedModel]


@pytest.fixture(scope="session")
def made_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Made]]:
    """Engines that always draft, and the whole models in torch."""
    made: dict[str, Made] = {}

    def get(name: str) -> Made:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            model = checkpoint(name, folder)
            engine = ChatEngine.from_pretrained(folder, pictures=True, speculation="always", **OPTIONS)
            with quickly_compiled():
                made[name] = engine.start(), model
        return made[name]

    yield get
    for engine, _ in made.values():
        engine.stop()
