"""The static key-value cache: one row of slots per layer, and the view of one slot that a model's forward updates.

A slot is the room of one conversation. The token at position p of a layer with R rows lives in row p % R. A full layer
has as many rows as the context; a sliding-window layer has window + chunk rows and is a ring, so that a whole prefill
chunk can be written before it is attended to. Everything follows from positions; nothing is counted in Python.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torchax import interop
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache, StaticLayer

# One (keys, values) pair a layer, each [slots, kv_heads, rows, head_dim]; without the first axis for a single slot.
KVCache = list[tuple[jax.Array, jax.Array]]


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """Shape and kind of one layer's cache. `window` is None for full attention."""

    window: int | None
    rows: int
    kv_heads: int
    key_dim: int
    value_dim: int


def layer_specs(model: PreTrainedModel, context: int, chunk: int) -> tuple[LayerSpec, ...]:
    """The cache layout of any causal model, read off one token's forward on the meta device.

    transformers' own DynamicCache decides which layers slide, and what the model puts into it decides the shapes, so no
    architecture's config names are needed.

    Args:
        model: a model on the meta device.
        context: tokens a slot holds.
        chunk: the largest number of tokens written at once.
    """
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.zeros((1, 1), dtype=torch.long, device="meta"), past_key_values=cache, use_cache=True)
    specs = []
    for layer in cache.layers:
        window = getattr(layer, "sliding_window", None)
        rows = context if window is None else min(context, window + chunk)
        _, kv_heads, _, key_dim = layer.keys.shape
        specs.append(
            LayerSpec(window=window, rows=rows, kv_heads=kv_heads, key_dim=key_dim, value_dim=layer.values.shape[-1])
        )
    return tuple(specs)


def allocate(specs: tuple[LayerSpec, ...], slots: int, dtype: Any) -> KVCache:
    """An empty cache. Each array has a buffer of its own: a shared one could not be donated."""
    return [
        (
            jnp.zeros((slots, spec.kv_heads, spec.rows, spec.key_dim), dtype),
            jnp.zeros((slots, spec.kv_heads, spec.rows, spec.value_dim), dtype),
        )
        for spec in specs
    ]


def attention_mask(spec: LayerSpec, positions: jax.Array, last: jax.Array) -> jax.Array:
    """Which rows each query may see, once everything up to position `last` is written.

    Args:
        spec: the layer.
        positions: int32 [queries], each query's position.
        last: int32 scalar, the last position written.

    Returns:
        bool [1, 1, queries, rows].
    """
    row = jnp.arange(spec.rows)
    held = last - (last - row) % spec.rows  # the newest position <= last that row holds; negative: never written
    seen = (held[None] >= 0) & (held[None] <= positions[:, None])
    if spec.window is not None:
        seen &= positions[:, None] - held[None] < spec.window
    return seen[None, None]


def write_rows(spec: LayerSpec, positions: jax.Array, keep: jax.Array) -> jax.Array:
    """The row each new token goes to, int32 [tokens]; where `keep` is False it is out of range and the write drops."""
    return jnp.where(keep, positions % spec.rows, spec.rows)


class SlotLayer(StaticLayer):
    """One layer of one slot as transformers' models see it: `update` writes at given rows and returns the whole slot.

    Derived from StaticLayer; StaticSlidingWindowLayer counts in Python ints, which go stale under jit.

    Args:
        keys, values: torch views [1, kv_heads, rows, dim].
        rows: int32 [tokens], from `write_rows`.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, rows: torch.Tensor):
        self.keys, self.values, self.rows = keys, values, rows
        self.max_cache_len = keys.shape[2]
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        self.keys = interop.call_jax(_write, self.keys, key_states, self.rows)
        self.values = interop.call_jax(_write, self.values, value_states, self.rows)
        return self.keys, self.values


def _write(cache: jax.Array, new: jax.Array, rows: jax.Array) -> jax.Array:
    return cache.at[:, :, rows].set(new.astype(cache.dtype), mode="drop")
