"""Attention over the tokens of a picture by jax's own kernel for TPUs, which keeps no scores in the chip's memory.

Splash attention (jax.experimental.pallas.ops.tpu.splash_attention) goes over blocks of keys with a running maximum. Its
own masks are not used: keys that no query may see, and those that fill up the last block, are of another segment.
"""

from typing import Any

import jax
import jax.numpy as jnp

BLOCKS = (1024, 896, 768, 640, 512, 384)  # queries, or keys, in the core's own memory at once
_SEEN, _UNSEEN = 1, 0  # segments of keys; all queries are in the first


def suits(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None) -> bool:
    """Whether the kernel computes this attention: bfloat16, many tokens, keys that all queries of a row see or none.

    Args: as for `attention`, of any shape and dtype.
    """
    if query.ndim != 4 or not query.dtype == key.dtype == value.dtype == jnp.bfloat16:
        return False
    is_of_keys = mask is None or (mask.dtype == bool and all(axis == 1 for axis in mask.shape[-3:-1]))
    has_blocks = min(query.shape[2], key.shape[2]) >= min(BLOCKS)
    return is_of_keys and has_blocks and query.shape[:2] == key.shape[:2] == value.shape[:2]


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
    from jax.experimental.pallas.ops.tpu import splash_attention as splash  # takes a second

    batch, heads, queries, _ = query.shape
    keys = key.shape[2]
    block_q, block_kv = _block(queries), _block(keys)
    seen = None if mask is None else jnp.broadcast_to(mask, (batch, 1, 1, keys))[:, 0, 0]
    if seen is None and keys % block_kv:
        seen = jnp.ones((batch, keys), bool)
    row: list[Any] = [
        _filled(query * scale, block_q, axis=2),
        *(_filled(each, block_kv, axis=2) for each in (key, value)),
    ]
    tokens = row[0].shape[2], row[1].shape[2]
    if seen is not None:
        segments = _filled(jnp.where(seen, _SEEN, _UNSEEN), block_kv, axis=1)
        row.append(splash.SegmentIds(q=jnp.full((batch, tokens[0]), _SEEN), kv=segments))
    sizes = splash.BlockSizes(block_q=block_q, block_kv=block_kv, block_kv_compute=block_kv)
    everything = splash.MultiHeadMask([splash.FullMask(tokens)] * heads)
    kernel = splash.make_splash_mha_single_device(everything, block_sizes=sizes, interpret=interpret)
    out: jax.Array = jax.vmap(kernel)(*row)
    return out[:, :, :queries]


def _block(tokens: int) -> int:
    """The block that needs the fewest tokens to fill up the last one; of several the largest."""
    return min(BLOCKS, key=lambda block: -tokens % block)


def _filled(array: jax.Array, block: int, axis: int) -> jax.Array:
    """The array with zeros up to whole blocks along an axis."""
    more = [(0, 0)] * array.ndim
    more[axis] = 0, -array.shape[axis] % block
    return jnp.pad(array, more)
