"""Attention as a CPU takes it best: keys read in place, and only rows that a query sees.

The results are those of `grouped_query.py`.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from hfjax_app.runtime.cpu.linear import are_few, fused_gemv
from hfjax_app.runtime.grouped_query import LOWEST, GroupedQuery, Products, products

MANY_ROWS, BLOCK = 512, 256  # so many rows or more are looked at in blocks, or halves

Attend = Callable[..., jax.Array]  # query, key, value, mask, sink, as GroupedQuery has them -> the weighted sum


def keys_first(query: jax.Array, key: jax.Array) -> jax.Array:
    """One token's products: those of a few queries with each key, or by XLA's library.

    The library rearranges the right operand as it goes, see linear.py: here that is the queries. With several tokens
    the scores are so many that XLA would copy them into order.
    """
    group = query.shape[2]
    if are_few(group, most=4):
        return fused_gemv(query.astype(jnp.float32), key, math.gcd(key.shape[2], 2) if group == 1 else 1)
    scores = products(key, jax.lax.optimization_barrier(query))
    out: jax.Array = jax.lax.optimization_barrier(scores)
    return out.swapaxes(2, 3)


def half_where_enough(attend: Attend) -> Attend:
    """`attend`, for one slot: of the first half of the rows where no query sees the second half."""

    def alone(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, sink: jax.Array | None) -> jax.Array:
        rows = key.shape[2]

        def first(count: int) -> jax.Array:
            return attend(query, key[:, :, :count], value[:, :, :count], mask[..., :count], sink)

        seen = jnp.any(mask[..., rows // 2 :])
        out: jax.Array = jax.lax.cond(seen, partial(first, rows), partial(first, rows // 2))
        return out

    return _of_one_slot(alone, attend)


def in_blocks(
    form: GroupedQuery,
    dots: Products,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    sink: jax.Array | None,
    origin: tuple[jax.Array, jax.Array, jax.Array] | None,
) -> jax.Array:
    """The same by a running maximum and sum (arXiv:2112.05682), up to the last block that a query sees.

    Args:
        form, query, key, value, mask, sink: as GroupedQuery has them.
        dots: products of queries and keys.
        origin: the arrays that key and value are a slot's first rows of, and the slot; blocks are cut from them.
    """
    batch, kv_heads, rows = key.shape[:3]
    *arrays, slot = (key, value, jnp.int32(0)) if origin is None else origin
    seen = jnp.any(mask, axis=tuple(range(mask.ndim - 1)))
    end = jnp.max(jnp.where(seen, jnp.arange(rows), 0)) + 1

    def block(carry: Any) -> Any:
        begin, highest, total, out = carry
        at = jnp.minimum(begin, rows - BLOCK)  # the last block is moved up to where the rows end
        keys, values = (
            jax.lax.dynamic_slice(array, (slot, 0, at, 0), (batch, kv_heads, BLOCK, array.shape[3])) for array in arrays
        )
        visible = jax.lax.dynamic_slice_in_dim(mask, at, BLOCK, axis=4)
        scores = form.scores(dots(query, keys), visible & (at + jnp.arange(BLOCK) >= begin))
        new = jnp.maximum(highest, jnp.max(scores, axis=-1, keepdims=True))
        weights, kept = jnp.exp(scores - new), jnp.exp(highest - new)
        total = total * kept + jnp.sum(weights, axis=-1, keepdims=True)
        return begin + BLOCK, new, total, out * kept + form.weighted(weights, values)

    shape = (batch, kv_heads, query.shape[2] // form.queries, form.queries)
    highest = jnp.full((*shape, 1), LOWEST) if sink is None else jnp.broadcast_to(sink, (*shape, 1))
    total = jnp.full((*shape, 1), 0.0 if sink is None else 1.0)
    carry = (jnp.int32(0), highest, total, jnp.zeros((*shape, value.shape[-1])))
    _, _, total, out = jax.lax.while_loop(lambda carry: carry[0] < end, block, carry)
    return out / total


def _of_one_slot(alone: Attend, otherwise: Attend) -> Attend:
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
