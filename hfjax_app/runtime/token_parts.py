"""The tokens of a picture over several devices: each computes a network's blocks for a part of them.

Where each device holds all weights, a block needs the other devices for its attention only. There each computes whole
heads for all tokens or its own queries with all keys, in a `shard_map`: XLA's partitioner does not know kernels, and
would repeat a loop over blocks of queries on each device. The mesh is the one that `Programs` sets for a trace.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from hfjax_app.runtime.mesh import AXIS, ROWS, TOKENS

FEWEST = 512  # tokens that are split: of fewer a device computes all in the time that an exchange takes


def over_devices(array: jax.Array) -> jax.Array:
    """The array with its tokens split over the mesh, if it is [batch, tokens, width] with many; else as it is."""
    if array.ndim != 3 or array.shape[1] < FEWEST:
        return array
    rows, parts = _axes(array.shape[0], TOKENS)
    if not parts:
        return array
    split: jax.Array = jax.lax.with_sharding_constraint(array, PartitionSpec(rows, parts))
    return split


def attention(
    attend: Callable[..., jax.Array], query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None
) -> jax.Array:
    """Attention on each device for its part of the rows, heads or queries.

    Args:
        attend: (query, key, value, mask) -> [batch, heads, queries, value_dim], for any part of the arguments.
        query: [batch, heads, queries, head_dim].
        key: [batch, heads, keys, head_dim].
        value: [batch, heads, keys, value_dim].
        mask: broadcastable to [batch, heads, queries, keys]; None: without one.

    Returns:
        [batch, heads, queries, value_dim]: of other shapes, and of few queries, what `attend` returns.
    """
    if query.ndim != 4 or query.shape[2] < FEWEST or not query.shape[:2] == key.shape[:2] == value.shape[:2]:
        return attend(query, key, value, mask)
    batch, heads, queries, _ = query.shape
    rows, parts = _axes(batch, TOKENS, AXIS)
    if rows is None and not parts:
        return attend(query, key, value, mask)
    devices = math.prod(map(_devices, parts))
    # Heads are exchanged for tokens, in queries, keys, values and the result, each device a part of its part; else all
    # keys and values go to each device.
    by_heads = heads % devices == 0 and (AXIS in parts or queries + key.shape[2] <= devices * key.shape[2])
    of_heads, of_queries = (parts, None) if by_heads else (None, parts)
    more = 0 if by_heads else -queries % devices
    arguments: list[Any] = [jnp.pad(query, ((0, 0), (0, 0), (0, more), (0, 0))), key, value]
    specs = [
        PartitionSpec(rows, of_heads, of_queries),
        PartitionSpec(rows, of_heads),
        PartitionSpec(rows, of_heads),
    ]
    if mask is not None:
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
        if mask.shape[2] > 1:
            mask = jnp.pad(mask, ((0, 0), (0, 0), (0, more), (0, 0)))
        axes = zip((rows, of_heads, of_queries), mask.shape, strict=False)
        arguments.append(mask)
        specs.append(PartitionSpec(*(axis if side > 1 else None for axis, side in axes)))

    def part(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        return attend(query, key, value, mask)

    out = jax.shard_map(part, in_specs=tuple(specs), out_specs=specs[0], check_vma=False)(*arguments)
    return out[:, :, :queries]


def _axes(batch: int, *names: str) -> tuple[str | None, tuple[str, ...]]:
    """The axes of the mesh over which rows are split, and their tokens: over all devices that have no row."""
    by_rows = _devices(ROWS) > 1 and batch % _devices(ROWS) == 0
    left = names if by_rows else (ROWS, *names)
    return ROWS if by_rows else None, tuple(name for name in left if _devices(name) > 1)


def _devices(axis: str) -> int:
    """The devices along an axis of the mesh that is set; 1 if there is none."""
    return int(jax.sharding.get_abstract_mesh().shape.get(axis, 1))
