"""The arithmetic of grouped-query attention: masked scores, softmax in float32, the weighted sum of values.

Each key-value head serves a group of query heads; keys and values are never repeated. `attention.py` chooses
the implementation for a platform.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

LOWEST = jnp.finfo(jnp.float32).min

# Queries [batch, kv_heads, n, head_dim] and keys [batch, kv_heads, m, head_dim] -> float32, n * m products per head.
Products = Callable[[jax.Array, jax.Array], jax.Array]


def products(left: jax.Array, right: jax.Array) -> jax.Array:
    """float32 [batch, kv_heads, n, m]: products of the vectors of `left`, [batch, kv_heads, n, head_dim], and `right`.

    dot_general keeps this order of operands, which needs no copy of the keys; einsum swaps them.
    """
    return jax.lax.dot_general(left, right, (((3,), (3,)), ((0, 1), (0, 1))), preferred_element_type=jnp.float32)


@dataclass(frozen=True, kw_only=True)
class GroupedQuery:
    """The sizes and score options of one call; the arrays are arguments of its methods.

    `query` is [batch, kv_heads, group * queries, head_dim], `key` [batch, kv_heads, positions, head_dim], `value`
    [batch, kv_heads, positions, value_dim], `mask` broadcastable to [batch, kv_heads, group, queries, positions] (bool:
    True where a query attends; float: added), and `sink` float32 [1, kv_heads, group, 1, 1] or None.

    Args:
        queries: tokens that attend.
        scaling: factor of the scores.
        softcap: where given, scores become softcap * tanh(scores / softcap).
    """

    queries: int
    scaling: float
    softcap: float | None

    def scores(self, dots: jax.Array, mask: jax.Array) -> jax.Array:
        """float32 [batch, kv_heads, group, queries, positions] from the products, whose shape may differ."""
        dots = dots.reshape(*dots.shape[:2], -1, self.queries, mask.shape[-1]) * self.scaling
        if self.softcap is not None:
            dots = self.softcap * jnp.tanh(dots / self.softcap)
        return jnp.where(mask, dots, LOWEST) if mask.dtype == bool else dots + mask

    def softmax(self, scores: jax.Array, sink: jax.Array | None) -> jax.Array:
        """The weight of each position; a sink takes a share and has no position."""
        if sink is None:
            return jax.nn.softmax(scores, axis=-1)
        scores = jnp.concatenate([scores, jnp.broadcast_to(sink, (*scores.shape[:-1], 1))], axis=-1)
        return jax.nn.softmax(scores, axis=-1)[..., :-1]

    def weighted(self, weights: jax.Array, value: jax.Array) -> jax.Array:
        """float32 [batch, kv_heads, group, queries, value_dim]."""
        batch, kv_heads, group, queries, positions = weights.shape
        weights = weights.astype(value.dtype).reshape(batch, kv_heads, group * queries, positions)
        out = jax.lax.dot_general(weights, value, (((3,), (2,)), ((0, 1), (0, 1))), preferred_element_type=jnp.float32)
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
        """float32 [batch, kv_heads, group, queries, value_dim], over all positions at once."""
        return self.weighted(self.softmax(self.scores(products(query, key), mask), sink), value)
