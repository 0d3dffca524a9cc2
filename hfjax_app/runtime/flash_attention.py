"""Attention over the tokens of a picture by jax's own kernel for TPUs, which keeps no scores in the chip's memory.

Splash attention (jax.experimental.pallas.ops.tpu.splash_attention) goes over blocks of keys with a running maximum. Its
own masks are not used: keys that no query may see, and those that fill up the last block, are of another segment. XLA's
partitioner does not know the kernel, so each device computes whole heads, on the mesh that `Programs` sets for a trace.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from hfjax_app.runtime.mesh import AXIS, ROWS

BLOCKS = (1024, 768, 512)  # queries, or keys, in the core's own memory at once
_SEEN, _UNSEEN = 1, 0  # segments of keys; all queries are in the first


def suits(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None) -> bool:
    """Whether the kernel computes this attention: bfloat16, many tokens, keys that all queries of a row see or none.

    Args: as for `attention`, of any shape and dtype.
    """
    if query.ndim != 4 or not query.dtype == key.dtype == value.dtype == jnp.bfloat16:
        return False
    is_of_keys = mask is None or (mask.dtype == bool and all(axis == 1 for axis in mask.shape[-3:-1]))
    has_blocks = min(query.shape[2], key.shape[2]) >= min(BLOCKS)
    own_heads = query.shape[:2] == key.shape[:2] == value.shape[:2] and query.shape[1] % _devices(AXIS) == 0
    return is_of_keys and has_blocks and own_heads


def attention(
    query: jax.Array, key: jax.Array, value: jax.Array, *, mask: jax.Array | None, scale: float, interpret: bool = False
) -> jax.Array:
    """Scaled dot-product attention that `suits`.

    Args:
        query: bfloat16 [batch, heads, queries, head_dim].
        key: bfloat16 [batch, heads, keys, head_dim].
        value: bfloat16 [batch, heads, keys, value_dim].
        mask: bool, broadcastable to [batch, 1, 1, keys], True for the keys that are seen; None: all are.
        scale: factor of the scores.
        interpret: whether to compute the kernel step by step in plain JAX, which any device can.

    Returns:
        bfloat16 [batch, heads, queries, value_dim].
    """
    batch, _, queries, _ = query.shape
    keys = key.shape[2]
    block_q, block_kv = _block(queries), _block(keys)
    seen = None if mask is None else jnp.broadcast_to(mask, (batch, 1, 1, keys))[:, 0, 0]
    if seen is None and keys % block_kv:
        seen = jnp.ones((batch, keys), bool)
    segments = None if seen is None else _filled(jnp.where(seen, _SEEN, _UNSEEN), block_kv, axis=1)
    kernel = partial(_on_each, blocks=(block_q, block_kv), interpret=interpret)
    arguments = (
        _filled(query * scale, block_q, axis=2),
        _filled(key, block_kv, axis=2),
        _filled(value, block_kv, axis=2),
        segments,
    )
    if not jax.sharding.get_abstract_mesh().empty:
        rows = ROWS if _devices(ROWS) > 1 and batch % _devices(ROWS) == 0 else None
        heads = PartitionSpec(rows, AXIS)
        kernel = jax.shard_map(
            kernel, in_specs=(heads, heads, heads, PartitionSpec(rows)), out_specs=heads, check_vma=False
        )
    return kernel(*arguments)[:, :, :queries]


def _on_each(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segments: jax.Array | None,
    *,
    blocks: tuple[int, int],
    interpret: bool,
) -> jax.Array:
    """The kernel for the rows and heads of one device; tokens are whole blocks, and queries are scaled.

    Args:
        segments: int32 [batch, keys]; None: all keys are seen.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as splash  # takes a second

    heads, queries, keys = *query.shape[1:3], key.shape[2]
    sizes = splash.BlockSizes(block_q=blocks[0], block_kv=blocks[1], block_kv_compute=blocks[1])
    everything = splash.MultiHeadMask([splash.FullMask((queries, keys))] * heads)
    kernel = splash.make_splash_mha_single_device(everything, block_sizes=sizes, interpret=interpret)
    row: list[Any] = [query, key, value]
    if segments is not None:
        row.append(splash.SegmentIds(q=jnp.full((query.shape[0], queries), _SEEN), kv=segments))
    out: jax.Array = jax.vmap(kernel)(*row)
    return out


def _block(tokens: int) -> int:
    """The block that needs the fewest tokens to fill up the last one; of several the largest."""
    return min(BLOCKS, key=lambda block: -tokens % block)


def _filled(array: jax.Array, block: int, axis: int) -> jax.Array:
    """The array with zeros up to whole blocks along an axis."""
    more = [(0, 0)] * array.ndim
    more[axis] = 0, -array.shape[axis] % block
    return jnp.pad(array, more)


def _devices(axis: str) -> int:
    """The devices along an axis of the mesh that is set; 1 if there is none."""
    return int(jax.sharding.get_abstract_mesh().shape.get(axis, 1))
