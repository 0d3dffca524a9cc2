"""Heads side by side: keys and values of several narrow heads in one row, as wide as a device's vector registers.

A TPU keeps the last axis of an array in 128 lanes. Heads of 64 channels would leave half of them empty, so its compiler
lays such a cache out with rows in the lanes, and copies all of it where a row is written. Two heads in a row fill the
lanes. A query then has zeros where the other heads' channels are: its products are the same, and take as long, because
the matrix unit is 128 wide anyway.
"""

from dataclasses import dataclass
from typing import TypeVar

import jax
import jax.numpy as jnp
import torch

Array = TypeVar("Array", jax.Array, torch.Tensor)


@dataclass(frozen=True, kw_only=True)
class HeadPacking:
    """What decides how many heads share a row.

    Args:
        width: numbers that a device keeps side by side; 1: heads have rows of their own.
        devices: that heads are split over where they divide them evenly.
    """

    width: int = 1
    devices: int = 1

    def heads_per_row(self, heads: int, channels: int) -> int:
        """The most key-value heads, of so many channels, that fit in a row, divide the heads, and leave each device
        whole rows."""
        of_each = heads if heads % self.devices else heads // self.devices
        return max((n for n in range(1, of_each + 1) if of_each % n == 0 and n * channels <= self.width), default=1)


UNPACKED = HeadPacking()


def packed(heads: Array, per_row: int) -> Array:
    """[..., heads, tokens, dim] -> [..., heads / per_row, tokens, per_row * dim]."""
    *lead, count, tokens, dim = heads.shape
    apart = heads.reshape(*lead, count // per_row, per_row, tokens, dim)
    return apart.swapaxes(-3, -2).reshape(*lead, count // per_row, tokens, per_row * dim)


def unpacked(rows: Array, per_row: int) -> Array:
    """What `packed` was made of."""
    *lead, count, tokens, dim = rows.shape
    apart = rows.reshape(*lead, count, tokens, per_row, dim // per_row)
    return apart.swapaxes(-3, -2).reshape(*lead, count * per_row, tokens, dim // per_row)


def spread(query: jax.Array, kv_heads: int, per_row: int) -> jax.Array:
    """Queries for packed keys: each with its channels in its key-value head's place, and zeros in the others'.

    Args:
        query: [batch, heads, queries, dim]; heads is a multiple of kv_heads.

    Returns:
        [batch, heads, queries, per_row * dim].
    """
    batch, heads, queries, dim = query.shape
    apart = query.reshape(batch, kv_heads // per_row, per_row, -1, 1, dim)
    places = jnp.eye(per_row, dtype=bool)[:, None, :, None]
    return jnp.where(places, apart, 0).reshape(batch, heads, queries, per_row * dim)


def picked(outputs: jax.Array, kv_heads: int, per_row: int) -> jax.Array:
    """Of sums of packed values, each head's own.

    Args:
        outputs: [batch, queries, heads, per_row * dim].

    Returns:
        [batch, queries, heads, dim].
    """
    batch, queries, heads, dim = outputs.shape
    apart = outputs.reshape(batch, queries, kv_heads // per_row, per_row, -1, per_row, dim // per_row)
    places = jnp.eye(per_row, dtype=bool)[:, None, :, None]
    return jnp.where(places, apart, 0).sum(axis=-2).reshape(batch, queries, heads, dim // per_row)
