"""Rung 1: eager, with a dynamic cache.

`model.to("jax")` turns each weight into a tensor that holds a JAX array. Inside of torchax's environment JAX computes
each torch operator, one after the other, and the model's code does not notice. The cache grows by one position with
each token, and XLA compiles for shapes: every step compiles operators for a length that was never seen before.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torchax
from transformers import DynamicCache

from hfjax_app.ladder.chat.task import ChatTask, Run


def prepare(task: ChatTask) -> Run:
    model: Any = task.load()
    with torchax.default_env():
        model.to("jax")

    def step(ids: torch.Tensor, cache: DynamicCache) -> tuple[torch.Tensor, int]:
        """The likeliest next token after tokens [1, n]: [1, 1], and as a number."""
        with torchax.default_env(), torch.no_grad():
            logits = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            likeliest = logits.argmax(-1)
            return likeliest, int(likeliest.item())

    def run() -> Iterator[int]:
        cache = DynamicCache(config=model.config)
        with torchax.default_env():
            ids = torch.tensor([task.prompt]).to("jax")
        for _ in range(task.tokens):
            ids, token = step(ids, cache)
            yield token

    return run
