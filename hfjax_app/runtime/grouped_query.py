"""The arithmetic of grouped-query attention: masked scores, softmax in float32, the weighted sum of values.

Each key-value head serves a group of query heads, whose keys and values are never repeated. Does not choose a form for
a platform: `attention.py` does.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

LOWEST = jnp.finfo(jnp.float32).min

# Queries [batch, kv_heads, n, head_dim] and keys [batch, kv_heads, m, head_dim] -> float32, n * m products a head.
Products = Callable[[jax.Array, jax.Array], jax.Array]


def products(left: jax.Array, right: jax.Array) -> jax.Array:
    """float32 [batch, kv_heads, n, m]: the vectors of `left`, [batch, kv_heads, n, head_dim], by those of `right`.

    dot_general keeps this order of operands, in which no copy of keys is made; einsum turns it round.
    """
    return jax.lax.dot_general(left, right, (((3,), (3,)), ((0, 1), (0, 1))), preferred_element_type=jnp.float32)


@dataclass(frozen=True, kw_only=True)
class GroupedQuery:
    """One call's sizes and score options; the arrays are arguments of its methods.

    In these, `query` is [batch, kv_heads, group * queries, head_dim], `key` [batch, kv_heads, rows, head_dim], `value`
    [batch, kv_heads, rows, value_dim], `mask` broadcastable to [batch, kv_heads, group, queries, rows] (bool: where to
    look; float: added), and `sink` float32 [1, kv_heads, group, 1, 1] or None.

    Args:
        queries: tokens that look.
        scaling: factor of the scores.
        softcap: where given, scores become softcap * tanh(scores / softcap).
    """

    queries: int
    scaling: float
    softcap: float | None

    def scores(self, dots: jax.Array, mask: jax.Array) -> jax.Array:
        """float32 [batch, kv_heads, group, queries, rows] of bare products, in any shape of as many."""
        dots = dots.reshape(*dots.shape[:2], -1, self.queries, mask.shape[-1]) * self.scaling
        if self.softcap is not None:
            dots = self.softcap * jnp.tanh(dots / self.softcap)
        return jnp.where(mask, dots, LOWEST) if mask.dtype == bool else dots + mask

    def softmax(self, scores: jax.Array, sink: jax.Array | None) -> jax.Array:
        """Shares of the rows; a sink takes its own and has no row."""
        if sink is None:
            return jax.nn.softmax(scores, axis=-1)
        scores = jnp.concatenate([scores, jnp.broadcast_to(sink, (*scores.shape[:-1], 1))], axis=-1)
        return jax.nn.softmax(scores, axis=-1)[..., :-1]

    def weighted(self, shares: jax.Array, value: jax.Array) -> jax.Array:
        """float32 [batch, kv_heads, group, queries, value_dim]."""
        batch, kv_heads, group, queries, rows = shares.shape
        shares = shares.astype(value.dtype).reshape(batch, kv_heads, group * queries, rows)
        out = jax.lax.dot_general(shares, value, (((3,), (2,)), ((0, 1), (0, 1))), preferred_element_type=jnp.float32)
        return out.reshape(batch, kv_heads, group, queries, value.shape[-1])

    def attend(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: jax.Array,
        sink: jax.Array | None,
        *,
        products: Products = products,
    ) -> jax.Array:
        """float32 [batch, kv_heads, group, queries, value_dim], over all rows at once."""
        return self.weighted(self.softmax(self.scores(products(query, key), mask), sink), value)
