"""Attention in JAX, registered with transformers' public AttentionInterface under the name `hfjax`.

Grouped-query attention without repeating keys and values, with soft-capping and attention sinks, softmax in float32.
The mask is transformers' own function of positions, evaluated where the cache says its rows are. Architectures with
an attention of their own (Bloom's ALiBi, for one) keep it.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torchax import interop
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from hfjax_app.runtime import head_packing
from hfjax_app.runtime.cpu import attention as cpu_attention
from hfjax_app.runtime.grouped_query import GroupedQuery, products

NAME = "hfjax"
# Tensors that models hand on to any attention, and that the mask or the keys already say.
_SAID_OTHERWISE = ("position_ids", "cache_position")


def grouped_query_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    scaling: float,
    softcap: float | None = None,
    sinks: jax.Array | None = None,
    origin: tuple[jax.Array, jax.Array, jax.Array] | None = None,
) -> jax.Array:
    """Scaled dot-product attention where each key-value head serves a group of query heads.

    Args:
        query: [batch, heads, queries, head_dim].
        key: [batch, kv_heads, rows, head_dim]; heads is a multiple of kv_heads.
        value: [batch, kv_heads, rows, value_dim].
        mask: broadcastable to [batch, 1 or heads, queries, rows]; bool: True where a query may look; float: added.
        scaling: factor of the scores, usually head_dim ** -0.5.
        softcap: where given, scores become softcap * tanh(scores / softcap) (Gemma 2, arXiv:2408.00118, section 2).
        sinks: where given, [heads]: one more score a head, which takes its share of the softmax and adds nothing
            (GPT-OSS; arXiv:2309.17453).
        origin: where key and value were cut from, if they are a slot's first rows: arrays [slots, kv_heads, more rows,
            dim] and the slot, int32 scalar. Reading them there saves the copy.

    Returns:
        [batch, queries, heads, value_dim], in the dtype of `query`.
    """
    batch, heads, queries, head_dim = query.shape
    kv_heads, rows = key.shape[1:3]
    form = GroupedQuery(queries=queries, scaling=scaling, softcap=softcap)
    grouped = query.reshape(batch, kv_heads, -1, head_dim)
    mask = mask[:, :, None] if mask.shape[1] == 1 else mask.reshape(batch, kv_heads, -1, *mask.shape[2:])
    sink = None if sinks is None else sinks.reshape(1, kv_heads, -1, 1, 1).astype(jnp.float32)
    arguments = (grouped, key, value, mask, sink)
    attend = partial(form.attend, products=partial(_dots, queries))
    many = rows >= cpu_attention.MANY_ROWS and mask.dtype == bool
    if many and queries > 1:
        in_blocks = partial(cpu_attention.in_blocks, form, partial(_dots, queries), *arguments, origin)
        out: jax.Array = jax.lax.platform_dependent(cpu=in_blocks, default=partial(attend, *arguments))
    elif many and batch == 1:
        out = jax.lax.platform_dependent(*arguments, cpu=cpu_attention.half_where_enough(attend), default=attend)
    else:
        out = attend(*arguments)
    out = out.reshape(batch, heads, queries, value.shape[-1])
    return out.swapaxes(1, 2).astype(query.dtype)


def _dots(queries: int, query: jax.Array, key: jax.Array) -> jax.Array:
    """Products of grouped queries and keys, of as many tokens as `queries`."""
    on_cpu = cpu_attention.keys_first if queries == 1 else products
    scores: jax.Array = jax.lax.platform_dependent(query, key, cpu=on_cpu, default=products)
    return scores


def packed_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, per_row: int, *others: Any
) -> jax.Array:
    """`grouped_query_attention` on keys and values of which `per_row` heads lie side by side, see head_packing.py.

    Args:
        key, value: [batch, kv_heads / per_row, rows, per_row * dim]; so are the arrays of `origin`.
        query, mask, others: as there.
    """
    kv_heads = key.shape[1] * per_row
    query = head_packing.spread(query, kv_heads, per_row)
    return head_packing.picked(grouped_query_attention(query, key, value, mask, *others), kv_heads, per_row)


def unpacked(rows: torch.Tensor, per_row: int) -> torch.Tensor:
    """Keys or values [1, kv_heads, rows, dim] of which `per_row` heads lie side by side; with a note of how they lie,
    which our attention reads instead."""
    if per_row == 1:
        return rows
    heads = head_packing.unpacked(rows, per_row)
    heads.packed = rows  # type: ignore[attr-defined]
    return heads


def first_rows(cache: torch.Tensor, slot: torch.Tensor, rows: int) -> torch.Tensor:
    """A slot's first rows as keys or values for one sequence, [1, kv_heads, rows, dim], cut from all slots' `cache`
    [slots, kv_heads, ..., dim]; with a note of their origin, which our attention may read instead."""

    def cut(cache: jax.Array, slot: jax.Array) -> jax.Array:
        whole: jax.Array = jax.lax.dynamic_index_in_dim(cache, slot)
        return whole[:, :, :rows]

    part: torch.Tensor = interop.call_jax(cut, cache, slot)
    part.origin = cache, slot  # type: ignore[attr-defined]
    return part


def _attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The signature that AttentionInterface asks for; sliding windows are already in the mask.

    Raises:
        NotImplementedError: the architecture gives a tensor that this attention knows nothing of: a bias for positions,
            or which keys a sparse one looks at.
    """
    for name, other in others.items():
        if isinstance(other, torch.Tensor) and name not in _SAID_OTHERWISE:
            raise NotImplementedError(f"its attention takes {name}")
    if query.device.type == "meta":  # the cache layout is read off a forward without values
        return query.new_empty((*query.shape[:-1], value.shape[-1])).transpose(1, 2), None
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    per_row, origin = 1, None
    if hasattr(key, "packed") and hasattr(value, "packed"):
        per_row = key.shape[1] // key.packed.shape[1]
        key, value = key.packed, value.packed
    if hasattr(key, "origin") and hasattr(value, "origin"):  # as they came from the cache
        origin = (key.origin[0], *value.origin)
    options = (scale, softcap, s_aux, origin)
    if per_row == 1:
        return interop.call_jax(grouped_query_attention, query, key, value, attention_mask, *options), None
    return interop.call_jax(packed_attention, query, key, value, attention_mask, per_row, *options), None


def _mask(*args: Any, **options: Any) -> torch.Tensor:
    """bool [batch, 1, queries, rows]: transformers' mask function at the cache's positions, never left out."""
    skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False, "use_vmap": False}
    mask = sdpa_mask(*args, **options | skips)
    assert mask is not None
    return mask


def register() -> str:
    """Make the attention and its masks known to transformers and return their name for `attn_implementation`."""
    AttentionInterface.register(NAME, _attention_forward)
    AttentionMaskInterface.register(NAME, _mask)
    return NAME
