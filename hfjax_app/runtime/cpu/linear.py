"""torch.nn.functional.linear on a CPU, where how a product is written decides its speed; and narrow weights.

Weights may be bfloat16 or int8 where activations are float32: what is multiplied and added is float32 all the same,
and each number is converted where it is read, never the whole matrix. Other platforms get the plain product. So do
many rows of float32, where arithmetic takes the time and not reading.
"""

import jax
import jax.numpy as jnp
import numpy as np

MANY_ROWS = 128
# Into how many parts weights are divided for up to so many rows. Each row and part is a sum in a register.
_PARTS = {1: 4, 2: 8, 4: 4, 8: 3}
_L1_BYTES = 32 << 10


def linear(x: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """x @ weight.T + bias.

    Args:
        x: [..., inputs].
        weight: [outputs, inputs]; of any dtype where `x` is float32.
        bias: [outputs] or None.

    Returns:
        [..., outputs], in the wider dtype of the two.
    """
    rows = x.reshape(-1, x.shape[-1])
    out = product(rows, weight).reshape(*x.shape[:-1], -1)
    return out if bias is None else out + bias


def product(rows: jax.Array, weight: jax.Array) -> jax.Array:
    """[rows, inputs] @ [outputs, inputs].T, in the wider dtype of the two."""
    narrow = weight.dtype != rows.dtype
    if rows.dtype == jnp.float32 and (narrow or (weight.dtype == jnp.float32 and rows.shape[0] < MANY_ROWS)):
        return _by_platform(rows, weight)
    return _plain(rows, weight)


@jax.custom_jvp
def _by_platform(rows: jax.Array, weight: jax.Array) -> jax.Array:
    out: jax.Array = _rows_together(rows, weight)
    return out


@_by_platform.defjvp
def _by_platform_jvp(
    primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """The product's own rule, because custom_vmap has none for reverse mode."""
    (rows, weight), (d_rows, d_weight) = primals, tangents
    return _by_platform(rows, weight), _plain(d_rows, weight) + _plain(rows, d_weight)


@jax.custom_batching.custom_vmap
def _rows_together(rows: jax.Array, weight: jax.Array) -> jax.Array:
    out: jax.Array = jax.lax.platform_dependent(rows, weight, cpu=_on_cpu, default=_plain)
    return out


@_rows_together.def_vmap
def _rows_of_a_batch(batch: int, batched: list[bool], rows: jax.Array, weight: jax.Array) -> tuple[jax.Array, bool]:
    """Rows of several sequences are rows: the weights are read once for all of them."""
    if batched[1]:  # no layer has weights per sequence, but linear is anyone's function
        return jax.vmap(_plain, in_axes=(0 if batched[0] else None, 0))(rows, weight), True
    return product(rows.reshape(-1, rows.shape[-1]), weight).reshape(batch, rows.shape[1], -1), True


def _plain(rows: jax.Array, weight: jax.Array) -> jax.Array:
    return jnp.einsum("ri,oi->ro", rows, weight)


def _on_cpu(rows: jax.Array, weight: jax.Array) -> jax.Array:
    narrow = weight.dtype != rows.dtype
    count, outputs = rows.shape[0], weight.shape[0]
    few = are_few(count, most=8 if narrow else 4)  # with narrow ones the library is slower
    if few and (narrow or count == 1 or rows.nbytes <= _L1_BYTES):
        most = next(parts for up_to, parts in _PARTS.items() if count <= up_to)
        return fused_gemv(rows, weight, next(parts for parts in range(most, 0, -1) if outputs % parts == 0))
    return _converting(rows, weight) if narrow else _weight_first(rows, weight)


def are_few(rows: int, most: int) -> bool:
    """Whether `fused_gemv` is for them. Several CPU devices stand in for chips: parts of what is split over them would
    have to be exchanged."""
    return rows <= most and jax.local_device_count() == 1


def fused_gemv(rows: jax.Array, matrix: jax.Array, parts: int = 1) -> jax.Array:
    """Products on a CPU in one loop, which reads each number of the matrix once, where it lies, for a few rows at once.

    It is one reduction with a sum for every row and part of the matrix. It is fast where `parts` times the number of
    rows is 2 or more (of one sum, XLA's library makes a product) and the processor has registers for all (24 vectors);
    and where a program lets it add up in another order than written, see programs.py. The barrier keeps XLA from
    converting a matrix ahead of the loop over steps.

    Args:
        rows: [..., n, inputs].
        matrix: [..., outputs, inputs], in any dtype.
        parts: into how many it is divided, which are read side by side; divides `outputs`.

    Returns:
        [..., n, outputs], in the dtype of `rows`.
    """
    rows, matrix = jax.lax.optimization_barrier((_opaque(rows), matrix))
    *batch, outputs, inputs = matrix.shape
    axis, size = len(batch), outputs // parts
    shape, same = (*batch, size, inputs), range(axis + 2)
    # Few operations, and of jax.lax: a program has a hundred of these loops, and takes its time to be compiled.
    columns = [
        jax.lax.slice_in_dim(matrix, i * size, (i + 1) * size, axis=axis).astype(rows.dtype) for i in range(parts)
    ]
    each = [jax.lax.index_in_dim(rows, i, axis=axis) for i in range(rows.shape[axis])]
    each = [jax.lax.broadcast_in_dim(row, shape, same) for row in each]
    products = [jax.lax.mul(row, column) for row in each for column in columns]
    zeros = [np.zeros((), rows.dtype)] * len(products)
    sums = jax.lax.reduce(products, zeros, lambda one, other: list(map(jax.lax.add, one, other)), (axis + 1,))
    return jax.lax.concatenate(sums, axis).reshape(*batch, -1, outputs)


def _opaque(rows: jax.Array) -> jax.Array:
    """The same numbers, which XLA computes before the loop over outputs, and not again for each of them: it takes what
    is cheap into its loops, but not a division, and can't see that this one is by one."""
    return rows / jnp.where(rows == rows, 1, 2)


def _weight_first(rows: jax.Array, weight: jax.Array) -> jax.Array:
    """XLA's library for products reads a matrix in place as the left operand, and rearranges it as the right one.

    Barriers, because XLA would move the transpositions into the product and so swap its operands.
    """
    columns = jax.lax.optimization_barrier(rows.T)
    out: jax.Array = jax.lax.optimization_barrier(jnp.matmul(weight, columns))
    return out.T


def _converting(rows: jax.Array, weight: jax.Array) -> jax.Array:
    """Written as a sum of products, of which the same library makes a product that converts what it reads.

    It does so for two rows or more. The first barrier keeps XLA from converting ahead of the loop over steps.
    """
    count = rows.shape[0]
    rows, weight = jax.lax.optimization_barrier((jnp.pad(rows, ((0, max(0, 2 - count)), (0, 0))), weight))
    sums = jnp.sum(weight.astype(rows.dtype)[:, None, :] * rows[None], axis=2)
    out: jax.Array = jax.lax.optimization_barrier(sums)
    return out.T[:count]
