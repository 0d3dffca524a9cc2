"""Keys and values of several small heads side by side in one row, as wide as a device's vector registers.

A TPU keeps the last axis of an array in 128 lanes. Heads of 64 channels leave half of them empty, so its compiler
puts the positions of such a cache in the lanes and copies the whole cache where a position is written. Two heads in a
row fill the lanes. A packed query has zeros in the other heads' channels: its products are the same and take as long,
because the matrix unit is 128 wide in any case. `transforms.py` chooses the packing.
"""

from dataclasses import dataclass
from typing import TypeVar

import jax
import jax.numpy as jnp
import torch

Array = TypeVar("Array", jax.Array, torch.Tensor)


@dataclass(frozen=True, kw_only=True)
class HeadPacking:
    """The sizes that decide how many heads share a row.

    Args:
        width: numbers that a device keeps side by side; 1: one head per row.
        devices: number of devices that the heads are split over, where it divides the heads.
    """

    width: int = 1
    devices: int = 1

    def heads_per_row(self, heads: int, channels: int) -> int:
        """The largest number of key-value heads that fits in a row and leaves each device whole rows only."""
        local = heads if heads % self.devices else heads // self.devices
        return max((n for n in range(1, local + 1) if local % n == 0 and n * channels <= self.width), default=1)


UNPACKED = HeadPacking()


def packed(heads: Array, per_row: int) -> Array:
    """[..., heads, tokens, dim] -> [..., heads / per_row, tokens, per_row * dim]."""
    *lead, count, tokens, dim = heads.shape
    apart = heads.reshape(*lead, count // per_row, per_row, tokens, dim)
    return apart.swapaxes(-3, -2).reshape(*lead, count // per_row, tokens, per_row * dim)


def unpacked(rows: Array, per_row: int) -> Array:
    """The inverse of `packed`."""
    *lead, count, tokens, dim = rows.shape
    apart = rows.reshape(*lead, count, tokens, per_row, dim // per_row)
    return apart.swapaxes(-3, -2).reshape(*lead, count * per_row, tokens, dim // per_row)


def spread(query: jax.Array, kv_heads: int, per_row: int) -> jax.Array:
    """Queries for packed keys: each query in the place of its key-value head, zeros in the places of the others.

    Args:
        query: [batch, heads, queries, dim]; heads is a multiple of kv_heads.

    Returns:
        [batch, heads, queries, per_row * dim].
    """
    batch, heads, queries, dim = query.shape
    apart = query.reshape(batch, kv_heads // per_row, per_row, -1, dim)
    # Padded and not masked: a mask makes the TPU's compiler put the heads into the lanes and back.
    placed = [jnp.pad(apart[:, :, i], [(0, 0)] * 3 + [(i * dim, (per_row - 1 - i) * dim)]) for i in range(per_row)]
    return jnp.stack(placed, axis=2).reshape(batch, heads, queries, per_row * dim)


def picked(outputs: jax.Array, kv_heads: int, per_row: int) -> jax.Array:
    """Each head's part of the weighted sums of packed values.

    Args:
        outputs: [batch, queries, heads, per_row * dim].

    Returns:
        [batch, queries, heads, dim].
    """
    batch, queries, heads, dim = outputs.shape
    apart = outputs.reshape(batch, queries, kv_heads // per_row, per_row, -1, per_row, dim // per_row)
    places = jnp.eye(per_row, dtype=bool)[:, None, :, None]
    return jnp.where(places, apart, 0).sum(axis=-2).reshape(batch, queries, heads, dim // per_row)
