"""Rung 3: one compiled step.

`extract_jax` makes a pure function of a module: weights and arguments in, results out. So the cache must be an argument
and a result too: `Step` takes the keys and values of each layer apart and puts them together again. `jax.jit` compiles
the step once for the prompt's shape and once for a single token's. The weights are an argument: as constants of the
program they would be compiled with it, all 13 GB of them in the posts. `donate_argnums` lets a step write into the old
cache instead of a copy.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torchax
from transformers import Cache, PreTrainedModel

from hfjax_app.ladder.chat.eager_static import static_layers
from hfjax_app.ladder.chat.task import ChatTask, Run


class Step(torch.nn.Module):
    """A model's step as a function of its cache: (keys, values, tokens so far) of each layer."""

    def __init__(self, model: PreTrainedModel, length: int):
        super().__init__()
        self.model = model
        self.length = length

    def forward(self, ids: torch.Tensor, held: list[Any] | None = None) -> tuple[torch.Tensor, list[Any]]:
        """The likeliest next token, [1, 1], and the new cache; the first step makes the cache."""
        layers: list[Any] = static_layers(self.model, self.length)
        for layer, (keys, values, tokens) in zip(layers, held or (), strict=held is not None):
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values, layer.cumulative_length = keys, values, tokens
        cache = Cache(layers=layers)
        logits = self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1, return_dict=False)[0]
        return logits.argmax(-1), [(layer.keys, layer.values, layer.cumulative_length) for layer in layers]


def prepare(task: ChatTask) -> Run:
    weights, step = torchax.extract_jax(Step(task.load(), task.length))
    first = jax.jit(lambda weights, ids: step(weights, (ids,)))
    following = jax.jit(lambda weights, ids, held: step(weights, (ids, held)), donate_argnums=2)

    def run() -> Iterator[int]:
        ids, held = first(weights, jnp.array([task.prompt]))
        yield int(ids[0, 0])
        for _ in range(task.tokens - 1):
            ids, held = following(weights, ids, held)
            yield int(ids[0, 0])

    return run
