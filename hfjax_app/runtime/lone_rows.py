"""Products of a single row, padded so that an accelerator's matrix unit computes them.

The TPU's compiler turns a product of one row into multiplications and sums on the vector unit, which takes longer than
to read the weights: 2.5 ms instead of 0.9 for the output layer of Llama 3.2 1B on v5e, by the compiler's own estimate.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

ROWS = 8  # a tile of float32 rows; padding to two rows would give the matrix unit the same work

# Rows [n, inputs] and weights [outputs, inputs] -> [n, outputs].
Product = Callable[[jax.Array, jax.Array], jax.Array]


def padded(product: Product) -> Product:
    """The same product. A lone row is multiplied together with rows of zeros, and under vmap all rows together."""

    @jax.custom_batching.custom_vmap
    def of_rows(rows: jax.Array, weight: jax.Array) -> jax.Array:
        if rows.shape[0] != 1:
            return product(rows, weight)
        # Without the barrier, XLA would cut the product's operand instead of its result.
        out: jax.Array = jax.lax.optimization_barrier(product(jnp.pad(rows, ((0, ROWS - 1), (0, 0))), weight))
        return out[:1]

    @of_rows.def_vmap
    def of_a_batch(batch: int, batched: list[bool], rows: jax.Array, weight: jax.Array) -> tuple[Any, bool]:
        if batched[1]:
            return jax.vmap(product, in_axes=(0 if batched[0] else None, 0))(rows, weight), True
        return of_rows(rows.reshape(-1, rows.shape[-1]), weight).reshape(batch, rows.shape[1], -1), True

    out: Product = of_rows
    return out
