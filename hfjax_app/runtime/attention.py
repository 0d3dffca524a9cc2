"""Attention in JAX, registered with transformers' public AttentionInterface under the name `hfjax`.

Grouped-query attention without repeating keys and values, with soft-capping and attention sinks, softmax in float32.
The mask is transformers' own function of positions, evaluated at the positions that the cache holds. Architectures
with attention code of their own (for example Bloom's ALiBi) keep it.
"""

import dataclasses
import math
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
# Tensors that models pass to any attention and that are not needed here: the mask and the keys contain them.
_REDUNDANT = ("position_ids", "cache_position")


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
        key: [batch, kv_heads, positions, head_dim]; heads is a multiple of kv_heads.
        value: [batch, kv_heads, positions, value_dim].
        mask: broadcastable to [batch, 1 or heads, queries, positions]; bool: True where a query may attend; float:
            added to the scores.
        scaling: factor of the scores, usually head_dim ** -0.5.
        softcap: where given, scores become softcap * tanh(scores / softcap) (Gemma 2, arXiv:2408.00118, section 2).
        sinks: where given, [heads]: one more score per head, which takes part in the softmax and has no value
            (GPT-OSS; arXiv:2309.17453).
        origin: the source of key and value, if they are the first positions of a slot: arrays [slots, kv_heads, cache
            length, dim] and the slot, int32 scalar. Reading from the source saves the copy.

    Returns:
        [batch, queries, heads, value_dim], in the dtype of `query`.
    """
    batch, heads, queries, head_dim = query.shape
    kv_heads, positions = key.shape[1:3]
    form = GroupedQuery(queries=queries, scaling=scaling, softcap=softcap)
    grouped = query.reshape(batch, kv_heads, -1, head_dim)
    mask = mask[:, :, None] if mask.shape[1] == 1 else mask.reshape(batch, kv_heads, -1, *mask.shape[2:])
    sink = None if sinks is None else sinks.reshape(1, kv_heads, -1, 1, 1).astype(jnp.float32)
    arguments = (grouped, key, value, mask, sink)
    attend = partial(form.attend, products=partial(_dots, queries))
    is_long = positions >= cpu_attention.MANY_POSITIONS and mask.dtype == bool
    if queries > 1:
        on_cpu = partial(attend, *arguments)
        if is_long:
            on_cpu = partial(cpu_attention.in_blocks, form, partial(_dots, queries), *arguments, origin)
        on_others = partial(attend_in_blocks, form, *arguments)
        out: jax.Array = jax.lax.platform_dependent(cpu=on_cpu, default=on_others)
    elif is_long and batch == 1:
        out = jax.lax.platform_dependent(*arguments, cpu=cpu_attention.half_if_enough(attend), default=attend)
    else:
        out = attend(*arguments)
    out = out.reshape(batch, heads, queries, value.shape[-1])
    return out.swapaxes(1, 2).astype(query.dtype)


def _dots(queries: int, query: jax.Array, key: jax.Array) -> jax.Array:
    """Products of grouped queries and keys, for `queries` tokens."""
    on_cpu = cpu_attention.keys_first if queries == 1 else products
    scores: jax.Array = jax.lax.platform_dependent(query, key, cpu=on_cpu, default=products)
    return scores


def packed_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, per_row: int, *others: Any
) -> jax.Array:
    """`grouped_query_attention` on packed keys and values, `per_row` heads side by side; see head_packing.py.

    Args:
        key, value: [batch, kv_heads / per_row, positions, per_row * dim]; the arrays of `origin` are packed as well.
        query, mask, others: as in `grouped_query_attention`.
    """
    kv_heads = key.shape[1] * per_row
    query = head_packing.spread(query, kv_heads, per_row)
    return head_packing.picked(grouped_query_attention(query, key, value, mask, *others), kv_heads, per_row)


def unpacked(packed: torch.Tensor, per_row: int) -> torch.Tensor:
    """Keys or values [1, kv_heads, positions, dim] from packed ones with `per_row` heads side by side.

    The attribute `packed` of the result refers to the packed ones: this attention reads them, other code does not.
    """
    if per_row == 1:
        return packed
    heads = head_packing.unpacked(packed, per_row)
    heads.packed = packed  # type: ignore[attr-defined]
    return heads


def first_positions(cache: torch.Tensor, slot: torch.Tensor, positions: int) -> torch.Tensor:
    """The first positions of a slot as keys or values of one sequence, [1, kv_heads, positions, dim].

    The attribute `origin` of the result refers to `cache` and `slot`: this attention may read them instead.

    Args:
        cache: [slots, kv_heads, ..., dim].
        slot: int32 scalar.
        positions: how many.
    """

    def cut(cache: jax.Array, slot: jax.Array) -> jax.Array:
        whole: jax.Array = jax.lax.dynamic_index_in_dim(cache, slot)
        return whole[:, :, :positions]

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
    """The signature that AttentionInterface requires; sliding windows are already in the mask.

    Raises:
        NotImplementedError: the architecture passes a tensor that this attention does not support, such as a bias for
            positions or the key indices of a sparse attention.
    """
    for name, other in others.items():
        if isinstance(other, torch.Tensor) and name not in _REDUNDANT:
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
    """bool [batch, 1, queries, positions]: transformers' mask function at the cache's positions; never skipped."""
    skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False, "use_vmap": False}
    mask = sdpa_mask(*args, **options | skips)
    assert mask is not None
    return mask


def register() -> str:
    """Make the attention and its masks known to transformers and return their name for `attn_implementation`."""
    AttentionInterface.register(NAME, _attention_forward)
    AttentionMaskInterface.register(NAME, _mask)
    return NAME


MOST_SCORES = 4 << 20  # of a block, 16 MiB in float32: a v5e or v6e core has 128 MiB of its own memory


def attend_in_blocks(
    form: GroupedQuery, query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, sink: jax.Array | None
) -> jax.Array:
    """Attention of many tokens for accelerators, a block of queries at a time. Arguments and result as of
    `GroupedQuery.attend`, and the same numbers: each query still sees all its scores at once.

    All scores of 512 tokens and 2,048 positions of Llama 3.2 1B are 134 MB for each layer, and XLA writes and reads
    them in HBM several times: 1.5 ms on v5e by the compiler's estimate, in blocks 0.3.
    """
    size = block_size(form.queries, math.prod(query.shape[:3]) // form.queries * key.shape[2])
    if size == form.queries:
        return form.attend(query, key, value, mask, sink)
    batch, kv_heads, rows, dim = query.shape
    blocks = query.reshape(batch, kv_heads, rows // form.queries, -1, size, dim)
    masks = mask.reshape(*mask.shape[:3], -1, size, mask.shape[-1])
    of_block = dataclasses.replace(form, queries=size)

    def block(arguments: tuple[jax.Array, jax.Array]) -> jax.Array:
        some, visible = arguments
        some = some.reshape(batch, kv_heads, -1, dim)
        return of_block.attend(some, key, value, visible, sink).astype(query.dtype)

    out = jax.lax.map(block, (jnp.moveaxis(blocks, 3, 0), jnp.moveaxis(masks, 3, 0)))
    # [blocks, batch, kv_heads, group, size, value_dim]; the numbers were rounded as the caller would round them
    together = jnp.moveaxis(out, 0, 3).reshape(batch, kv_heads, -1, form.queries, value.shape[-1])
    return together.astype(jnp.float32)


def block_size(queries: int, scores: int) -> int:
    """Queries of a block: all, or the largest power of two that divides them and keeps a block small enough.

    Args:
        queries: their number.
        scores: of one query, in all heads.
    """
    if queries * scores <= MOST_SCORES:
        return queries
    return math.gcd(queries, 1 << max(0, (MOST_SCORES // scores).bit_length() - 1))
