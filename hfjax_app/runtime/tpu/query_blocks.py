"""Attention of many tokens for accelerators: in blocks of queries, so that the scores never leave the chip's memory.

All scores of 512 tokens and 2,048 positions of Llama 3.2 1B are 134 MB for each layer, and XLA writes and reads them
in HBM several times: 1.5 ms on v5e by the compiler's estimate, in blocks 0.3. The results are those of
`grouped_query.py`; each query still sees all its scores at once.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from hfjax_app.runtime.grouped_query import GroupedQuery

MOST_SCORES = 4 << 20  # of a block, 16 MiB in float32: a v5e or v6e core has 128 MiB of its own memory


def attend(
    form: GroupedQuery, query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, sink: jax.Array | None
) -> jax.Array:
    """Arguments and result as of `GroupedQuery.attend`."""
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
