"""torch.nn.functional.linear for few rows on a CPU, where the order of a product's operands decides its speed.

XLA's CPU library reads a weight matrix [outputs, inputs] in place when it is the left operand, and rearranges it on the
way when it is the right one, as in x @ weight.T. Other platforms get the plain product, and so do many rows, where
arithmetic takes the time and not reading.
"""

import jax
import jax.numpy as jnp

MANY_ROWS = 128


def linear(x: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """x @ weight.T + bias.

    Args:
        x: [..., inputs].
        weight: [outputs, inputs].
        bias: [outputs] or None.

    Returns:
        [..., outputs].
    """
    rows = x.reshape(-1, x.shape[-1])
    narrow = rows.shape[0] < MANY_ROWS and x.dtype == weight.dtype == jnp.float32
    out = (_few_rows if narrow else _plain)(rows, weight).reshape(*x.shape[:-1], -1)
    return out if bias is None else out + bias


@jax.custom_jvp
def _few_rows(rows: jax.Array, weight: jax.Array) -> jax.Array:
    """[rows, inputs] @ [outputs, inputs].T."""
    return _rows_together(rows, weight)


@_few_rows.defjvp
def _few_rows_jvp(
    primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """The product's own rule, because custom_vmap has none for reverse mode."""
    (rows, weight), (d_rows, d_weight) = primals, tangents
    return _few_rows(rows, weight), _plain(d_rows, weight) + _plain(rows, d_weight)


@jax.custom_batching.custom_vmap
def _rows_together(rows: jax.Array, weight: jax.Array) -> jax.Array:
    return jax.lax.platform_dependent(rows, weight, cpu=_weight_first, default=_plain)


@_rows_together.def_vmap
def _rows_of_a_batch(batch: int, batched: list[bool], rows: jax.Array, weight: jax.Array) -> tuple[jax.Array, bool]:
    """Rows of several sequences are rows: the weights are read once for all of them."""
    if batched[1]:  # no layer has weights per sequence, but linear is anyone's function
        return jax.vmap(_plain, in_axes=(0 if batched[0] else None, 0))(rows, weight), True
    return _rows_together(rows.reshape(-1, rows.shape[-1]), weight).reshape(batch, rows.shape[1], -1), True


def _plain(rows: jax.Array, weight: jax.Array) -> jax.Array:
    return jnp.einsum("ri,oi->ro", rows, weight)


def _weight_first(rows: jax.Array, weight: jax.Array) -> jax.Array:
    """Barriers, because XLA would move the transpositions into the product and so swap its operands."""
    columns = jax.lax.optimization_barrier(rows.T)
    return jax.lax.optimization_barrier(jnp.matmul(weight, columns)).T
