"""Attention for a CPU: keys are read in place, and only positions that a query attends to are read.

The results equal those of `grouped_query.py`. `attention.py` chooses between these and those of accelerators.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from hfjax_app.runtime.cpu.linear import are_few, fused_gemv
from hfjax_app.runtime.grouped_query import LOWEST, GroupedQuery, Products, products

MANY_POSITIONS, BLOCK = 512, 256  # so many positions or more are read in blocks, or in halves

Attend = Callable[..., jax.Array]  # query, key, value, mask, sink, as in GroupedQuery -> the weighted sum


def keys_first(query: jax.Array, key: jax.Array) -> jax.Array:
    """The products of one token's queries and the keys, by `fused_gemv` for a few queries, else by XLA's library.

    The library rearranges its right operand, see linear.py: here that is the queries. With several tokens there are so
    many scores that XLA would copy them to reorder them.
    """
    group = query.shape[2]
    if are_few(group, most=4):
        return fused_gemv(query.astype(jnp.float32), key, math.gcd(key.shape[2], 2) if group == 1 else 1)
    scores = products(key, jax.lax.optimization_barrier(query))
    out: jax.Array = jax.lax.optimization_barrier(scores)
    return out.swapaxes(2, 3)


def half_if_enough(attend: Attend) -> Attend:
    """`attend` for one slot, over the first half of the positions if no query attends to the second half."""

    def for_one(
        query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, sink: jax.Array | None
    ) -> jax.Array:
        positions = key.shape[2]

        def first(count: int) -> jax.Array:
            return attend(query, key[:, :, :count], value[:, :, :count], mask[..., :count], sink)

        needs_all = jnp.any(mask[..., positions // 2 :])
        out: jax.Array = jax.lax.cond(needs_all, partial(first, positions), partial(first, positions // 2))
        return out

    return _by_slots(for_one, attend)


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
    """Attention by a running maximum and sum (arXiv:2112.05682), up to the last block that a query attends to.

    Args:
        form, query, key, value, mask, sink: as in GroupedQuery.
        dots: products of queries and keys.
        origin: the arrays that contain key and value as a slot's first positions, and the slot; blocks are read there.
    """
    batch, kv_heads, positions = key.shape[:3]
    *arrays, slot = (key, value, jnp.int32(0)) if origin is None else origin
    attended = jnp.any(mask, axis=tuple(range(mask.ndim - 1)))
    end = jnp.max(jnp.where(attended, jnp.arange(positions), 0)) + 1

    def block(carry: Any) -> Any:
        begin, highest, total, out = carry
        at = jnp.minimum(begin, positions - BLOCK)  # the last block may overlap the one before it
        keys, values = (
            jax.lax.dynamic_slice(array, (slot, 0, at, 0), (batch, kv_heads, BLOCK, array.shape[3])) for array in arrays
        )
        visible = jax.lax.dynamic_slice_in_dim(mask, at, BLOCK, axis=4)
        scores = form.scores(dots(query, keys), visible & (at + jnp.arange(BLOCK) >= begin))
        new = jnp.maximum(highest, jnp.max(scores, axis=-1, keepdims=True))
        weights, rescale = jnp.exp(scores - new), jnp.exp(highest - new)
        total = total * rescale + jnp.sum(weights, axis=-1, keepdims=True)
        return begin + BLOCK, new, total, out * rescale + form.weighted(weights, values)

    shape = (batch, kv_heads, query.shape[2] // form.queries, form.queries)
    highest = jnp.full((*shape, 1), LOWEST) if sink is None else jnp.broadcast_to(sink, (*shape, 1))
    total = jnp.full((*shape, 1), 0.0 if sink is None else 1.0)
    carry = (jnp.int32(0), highest, total, jnp.zeros((*shape, value.shape[-1])))
    _, _, total, out = jax.lax.while_loop(lambda carry: carry[0] < end, block, carry)
    return out / total


def _by_slots(for_one: Attend, for_several: Attend) -> Attend:
    """A function that calls `for_one`, and under vmap over more than one slot `for_several`."""
    function = jax.custom_batching.custom_vmap(for_one)

    @function.def_vmap
    def batch_of(slots: int, batched: Any, *arguments: Any) -> tuple[jax.Array, bool]:
        if slots > 1:
            axes = jax.tree.map(lambda has_slots: 0 if has_slots else None, tuple(batched))
            return jax.vmap(for_several, in_axes=axes)(*arguments), True
        only = jax.tree.map(
            lambda argument, has_slots: argument[0] if has_slots else argument, arguments, tuple(batched)
        )
        return function(*only)[None], True

    return function
