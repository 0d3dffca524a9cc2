"""Attention in JAX, registered with transformers' public AttentionInterface under the name `hfjax`.

Grouped-query attention without repeating keys and values, with soft-capping and attention sinks, softmax in float32.
The mask is transformers' own function of positions, evaluated where the cache says its rows are. Architectures with
an attention of their own (Bloom's ALiBi, for one) keep it.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torchax import interop
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from hfjax_app.runtime import head_packing
from hfjax_app.runtime.cpu.linear import are_few, each_once

NAME = "hfjax"
# Tensors that models hand on to any attention, and that the mask or the keys already say.
_SAID_OTHERWISE = ("position_ids", "cache_position")
LOWEST = jnp.finfo(jnp.float32).min
MANY_ROWS, BLOCK = 512, 256  # on CPU, so many rows or more are looked at in blocks, or halves


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
    grouped = query.reshape(batch, kv_heads, -1, head_dim)
    mask = mask[:, :, None] if mask.shape[1] == 1 else mask.reshape(batch, kv_heads, -1, *mask.shape[2:])
    sink = None if sinks is None else sinks.reshape(1, kv_heads, -1, 1, 1).astype(jnp.float32)

    def masked(scores: jax.Array, mask: jax.Array) -> jax.Array:
        """float32 [batch, kv_heads, group, queries, rows] of bare products, in any shape of as many."""
        scores = scores.reshape(batch, kv_heads, -1, queries, mask.shape[-1]) * scaling
        if softcap is not None:
            scores = softcap * jnp.tanh(scores / softcap)
        return jnp.where(mask, scores, LOWEST) if mask.dtype == bool else scores + mask

    def scores_of(grouped: jax.Array, key: jax.Array, mask: jax.Array) -> jax.Array:
        on_cpu = _keys_first if queries == 1 else _products
        return masked(jax.lax.platform_dependent(grouped, key, cpu=on_cpu, default=_products), mask)

    def shares(scores: jax.Array, sink: jax.Array | None) -> jax.Array:
        """The softmax."""
        if sink is None:
            return jax.nn.softmax(scores, axis=-1)
        scores = jnp.concatenate([scores, jnp.broadcast_to(sink, (*scores.shape[:-1], 1))], axis=-1)
        return jax.nn.softmax(scores, axis=-1)[..., :-1]

    def weighted(weights: jax.Array, value: jax.Array) -> jax.Array:
        """float32 [batch, kv_heads, group, queries, value_dim]."""
        weights = weights.astype(value.dtype).reshape(*grouped.shape[:3], -1)
        out = jax.lax.dot_general(weights, value, (((3,), (2,)), ((0, 1), (0, 1))), preferred_element_type=jnp.float32)
        return out.reshape(batch, kv_heads, -1, queries, value.shape[-1])

    def whole(
        grouped: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, sink: jax.Array | None
    ) -> jax.Array:
        return weighted(shares(scores_of(grouped, key, mask), sink), value)

    def half_where_enough(
        grouped: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, sink: jax.Array | None
    ) -> jax.Array:
        """The same, of the first half of the rows where nothing is seen in the second."""

        def first(count: int) -> jax.Array:
            return whole(grouped, key[:, :, :count], value[:, :, :count], mask[..., :count], sink)

        seen = jnp.any(mask[..., rows // 2 :])
        return jax.lax.cond(seen, partial(first, rows), partial(first, rows // 2))

    def in_blocks() -> jax.Array:
        """The same by a running maximum and sum (arXiv:2112.05682), up to the last block that a query sees."""
        *arrays, slot = (key, value, jnp.int32(0)) if origin is None else origin
        seen = jnp.any(mask, axis=tuple(range(mask.ndim - 1)))
        end = jnp.max(jnp.where(seen, jnp.arange(rows), 0)) + 1

        def block(carry: Any) -> Any:
            begin, highest, total, out = carry
            at = jnp.minimum(begin, rows - BLOCK)  # the last block is moved up to where the rows end
            keys, values = (
                jax.lax.dynamic_slice(array, (slot, 0, at, 0), (batch, kv_heads, BLOCK, array.shape[3]))
                for array in arrays
            )
            visible = jax.lax.dynamic_slice_in_dim(mask, at, BLOCK, axis=4)
            scores = scores_of(grouped, keys, visible & (at + jnp.arange(BLOCK) >= begin))
            new = jnp.maximum(highest, jnp.max(scores, axis=-1, keepdims=True))
            weights, kept = jnp.exp(scores - new), jnp.exp(highest - new)
            total = total * kept + jnp.sum(weights, axis=-1, keepdims=True)
            return begin + BLOCK, new, total, out * kept + weighted(weights, values)

        shape = (batch, kv_heads, heads // kv_heads, queries)
        highest = jnp.full((*shape, 1), LOWEST) if sink is None else jnp.broadcast_to(sink, (*shape, 1))
        total = jnp.full((*shape, 1), 0.0 if sink is None else 1.0)
        carry = (jnp.int32(0), highest, total, jnp.zeros((*shape, value.shape[-1])))
        _, _, total, out = jax.lax.while_loop(lambda carry: carry[0] < end, block, carry)
        return out / total

    arguments = (grouped, key, value, mask, sink)
    many = rows >= MANY_ROWS and mask.dtype == bool
    if many and queries > 1:
        out = jax.lax.platform_dependent(cpu=in_blocks, default=partial(whole, *arguments))
    elif many and batch == 1:
        out = jax.lax.platform_dependent(*arguments, cpu=_of_one_slot(half_where_enough, whole), default=whole)
    else:
        out = whole(*arguments)
    out = out.reshape(batch, heads, queries, value.shape[-1])
    return out.swapaxes(1, 2).astype(query.dtype)


def _products(left: jax.Array, right: jax.Array) -> jax.Array:
    """float32 [batch, kv_heads, n, m]: the vectors of `left`, [batch, kv_heads, n, head_dim], by those of `right`.

    dot_general keeps this order of operands, in which no copy of keys is made; einsum turns it round.
    """
    return jax.lax.dot_general(left, right, (((3,), (3,)), ((0, 1), (0, 1))), preferred_element_type=jnp.float32)


def _keys_first(grouped: jax.Array, key: jax.Array) -> jax.Array:
    """One token's products, on a CPU: those of a few queries with each key, or XLA's library.

    That rearranges the right operand as it goes, see linear.py: so here that is the queries. Those of several tokens
    have so many scores that XLA would copy them into order.
    """
    group = grouped.shape[2]
    if are_few(group, most=4):
        return each_once(grouped.astype(jnp.float32), key, math.gcd(key.shape[2], 2) if group == 1 else 1)
    scores = _products(key, jax.lax.optimization_barrier(grouped))
    return jax.lax.optimization_barrier(scores).swapaxes(2, 3)


def _of_one_slot(alone: Callable[..., jax.Array], otherwise: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """A function that is `alone`, and under vmap of more than one slot `otherwise`."""
    function = jax.custom_batching.custom_vmap(alone)

    @function.def_vmap
    def batch_of(slots: int, batched: Any, *arguments: Any) -> tuple[jax.Array, bool]:
        if slots > 1:
            axes = jax.tree.map(lambda has_slots: 0 if has_slots else None, tuple(batched))
            return jax.vmap(otherwise, in_axes=axes)(*arguments), True
        only = jax.tree.map(
            lambda argument, has_slots: argument[0] if has_slots else argument, arguments, tuple(batched)
        )
        return function(*only)[None], True

    return function


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
    heads.packed = rows
    return heads


def first_rows(cache: torch.Tensor, slot: torch.Tensor, rows: int) -> torch.Tensor:
    """A slot's first rows as keys or values for one sequence, [1, kv_heads, rows, dim], cut from all slots' `cache`
    [slots, kv_heads, ..., dim]; with a note of their origin, which our attention may read instead."""
    part = interop.call_jax(lambda cache, slot: jax.lax.dynamic_index_in_dim(cache, slot)[:, :, :rows], cache, slot)
    part.origin = cache, slot
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
    return sdpa_mask(*args, **options | skips)


def register() -> str:
    """Make the attention and its masks known to transformers and return their name for `attn_implementation`."""
    AttentionInterface.register(NAME, _attention_forward)
    AttentionMaskInterface.register(NAME, _mask)
    return NAME
