"""Rung 2: eager, with a static cache.

The cache has its full length from the start, and a mask hides the positions that are not written yet. Every step has
the same shapes, so the third step compiles nothing that the second one has not. The operators are still dispatched one
by one. transformers' StaticCache is such a cache, but in the layers of a sliding window it counts tokens in Python
numbers, which would be constants of the next rung's program; so all layers are plain StaticLayers here.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torchax
from transformers import Cache, StaticLayer

from hfjax_app.ladder.chat.task import ChatTask, Run


def static_layers(model: Any, length: int) -> list[Any]:
    """A layer of the cache for each layer of the model."""
    config = model.config.get_text_config(decoder=True)
    return [StaticLayer(length) for _ in range(config.num_hidden_layers)]


def prepare(task: ChatTask) -> Run:
    model: Any = task.load()
    with torchax.default_env():
        model.to("jax")

    def step(ids: torch.Tensor, cache: Cache) -> tuple[torch.Tensor, int]:
        """The likeliest next token after tokens [1, n]: [1, 1], and as a number."""
        with torchax.default_env(), torch.no_grad():
            logits = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            likeliest = logits.argmax(-1)
            return likeliest, int(likeliest.item())

    def run() -> Iterator[int]:
        cache = Cache(layers=static_layers(model, task.length))
        with torchax.default_env():
            ids = torch.tensor([task.prompt]).to("jax")
        for _ in range(task.tokens):
            ids, token = step(ids, cache)
            yield token

    return run
