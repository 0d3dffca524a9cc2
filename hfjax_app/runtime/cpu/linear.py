"""torch.nn.functional.linear on a CPU, where the form of a product decides its speed; with bfloat16 or int8 weights.

With float32 activations the arithmetic is float32 for all dtypes of weights, and each number is converted where it is
read, never the whole matrix; int8 weights are also read by the int8 matrix unit (AMX). Other platforms get the plain
product, with padding for a lone row. Many float32 rows get the plain product, because they are bound by arithmetic and
not by memory.
"""

from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from hfjax_app.runtime import lone_rows

MANY_ROWS = 128
# The number of rows -> the number of parts of the weights. Each pair of a row and a part has its sum in a register.
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
    converts = weight.dtype != rows.dtype
    if rows.dtype == jnp.float32 and (converts or (weight.dtype == jnp.float32 and rows.shape[0] < MANY_ROWS)):
        return _by_platform(rows, weight)
    return _by_platform(rows, weight) if rows.shape[0] == 1 else _plain(rows, weight)


@jax.custom_jvp
def _by_platform(rows: jax.Array, weight: jax.Array) -> jax.Array:
    out: jax.Array = _rows_together(rows, weight)
    return out


@_by_platform.defjvp
def _by_platform_jvp(
    primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """The derivative of the product, because custom_vmap does not support reverse mode."""
    (rows, weight), (d_rows, d_weight) = primals, tangents
    return _by_platform(rows, weight), _plain(d_rows, weight) + _plain(rows, d_weight)


@jax.custom_batching.custom_vmap
def _rows_together(rows: jax.Array, weight: jax.Array) -> jax.Array:
    out: jax.Array = jax.lax.platform_dependent(rows, weight, cpu=_on_cpu, default=lone_rows.padded(_plain))
    return out


@_rows_together.def_vmap
def _rows_of_a_batch(batch: int, batched: list[bool], rows: jax.Array, weight: jax.Array) -> tuple[jax.Array, bool]:
    """Rows of several sequences are multiplied together: the weights are read once for all of them."""
    if batched[1]:  # no layer has weights per sequence, but torch's linear accepts them
        return jax.vmap(_plain, in_axes=(0 if batched[0] else None, 0))(rows, weight), True
    return product(rows.reshape(-1, rows.shape[-1]), weight).reshape(batch, rows.shape[1], -1), True


def _plain(rows: jax.Array, weight: jax.Array) -> jax.Array:
    return jnp.einsum("ri,oi->ro", rows, weight)


def _on_cpu(rows: jax.Array, weight: jax.Array) -> jax.Array:
    if rows.dtype != jnp.float32:
        return _plain(rows, weight)
    converts = weight.dtype != rows.dtype
    count, outputs = rows.shape[0], weight.shape[0]
    few = are_few(count, most=8 if converts else 4)  # the library is slower with converted weights
    if few and (converts or count == 1 or rows.nbytes <= _L1_BYTES):
        most = next(parts for up_to, parts in _PARTS.items() if count <= up_to)
        return fused_gemv(rows, weight, next(parts for parts in range(most, 0, -1) if outputs % parts == 0))
    return _converting(rows, weight) if converts else _weight_first(rows, weight)


def are_few(rows: int, most: int) -> bool:
    """Whether `fused_gemv` is the better form for so many rows.

    It is not on several CPU devices, which simulate chips: they would have to exchange parts of split weights.
    """
    return rows <= most and jax.local_device_count() == 1


def fused_gemv(rows: jax.Array, matrix: jax.Array, parts: int = 1) -> jax.Array:
    """Products of a few rows on a CPU in one loop, which reads each number of the matrix once and in place.

    It is one reduction with a sum for each row and each part of the matrix. It is fast where `parts` times the number
    of rows is 2 or more (XLA turns a single sum into a call of its library), where the processor has registers for all
    sums (24 vectors), and where the compiler may reorder sums, see programs.py. The barrier keeps XLA from converting a
    matrix before the loop over steps.

    Args:
        rows: [..., n, inputs].
        matrix: [..., outputs, inputs], in any dtype.
        parts: the number of parts of the matrix, which are read side by side; divides `outputs`.

    Returns:
        [..., n, outputs], in the dtype of `rows`.
    """
    rows, matrix = jax.lax.optimization_barrier((_opaque(rows), matrix))
    *batch, outputs, inputs = matrix.shape
    axis, size = len(batch), outputs // parts
    shape, same = (*batch, size, inputs), range(axis + 2)
    # Few operations, and from jax.lax: a program has a hundred of these loops, which take long to compile.
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
    """The same numbers, which XLA computes once before the loop over outputs and not again for each output.

    XLA moves cheap operations into loops, but not a division, and does not see that this one divides by 1.
    """
    return rows / jnp.where(rows == rows, 1, 2)


def _weight_first(rows: jax.Array, weight: jax.Array) -> jax.Array:
    """The product with the weight as the left operand, which XLA's library reads in place; it rearranges the right one.

    Without the barriers XLA would move the transpositions into the product and so swap its operands.
    """
    columns = jax.lax.optimization_barrier(rows.T)
    out: jax.Array = jax.lax.optimization_barrier(jnp.matmul(weight, columns))
    return out.T


def _converting(rows: jax.Array, weight: jax.Array) -> jax.Array:
    """A sum of products, which XLA turns into a library call that converts the weights as it reads them.

    It does so for two rows or more. The first barrier keeps XLA from converting before the loop over steps.
    """
    count = rows.shape[0]
    rows, weight = jax.lax.optimization_barrier((jnp.pad(rows, ((0, max(0, 2 - count)), (0, 0))), weight))
    sums = jnp.sum(weight.astype(rows.dtype)[:, None, :] * rows[None], axis=2)
    out: jax.Array = jax.lax.optimization_barrier(sums)
    return out.T[:count]


_DIGITS, _BASE = 3, 254

_MOST_INPUTS = (2**31 - 1) // 127**2  # more could overflow the integer products


def int8_dot_on_cpu(x: jax.Array, weight: jax.Array) -> jax.Array:
    rows = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
    by_digits = _multiplies_int8_matrices() and weight.shape[1] <= _MOST_INPUTS
    out = product_of_digits(rows, weight) if by_digits else product(rows, weight)
    return out.reshape(*x.shape[:-1], weight.shape[0])


@cache
def _multiplies_int8_matrices() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and " amx_int8" in cpuinfo.read_text()


@jax.custom_batching.custom_vmap
def product_of_digits(rows: jax.Array, weight: jax.Array) -> jax.Array:
    """[rows, inputs] by [outputs, inputs] with the precision of float32, from int8 products only.

    Each row, of at most `_MOST_INPUTS` inputs, is written in `_DIGITS` digits of -127 ... 127 to the base 254. The unit
    of the first digit is 1/127 of the row's largest magnitude; the rest after the last digit is less than 2^-23 of that
    magnitude. Each digit is a row of an integer product, which reads the int8 weights once for all digits. The weights
    are the left operand, which XLA's library reads in place.
    """
    unit = jnp.max(jnp.abs(rows), axis=1, keepdims=True) / 127
    unit = jnp.where(unit == 0, 1, unit)  # NaN stays NaN, also in the result
    digits, rest = [], rows / unit
    for _ in range(_DIGITS):
        digits.append(jnp.round(rest))
        rest = (rest - digits[-1]) * _BASE
    columns = jnp.concatenate(digits).astype(jnp.int8)
    products = jax.lax.dot_general(weight, columns, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32)
    out: jax.Array = jnp.float32(0)
    for digit_product in reversed(jnp.split(products.T.astype(jnp.float32), _DIGITS)):
        out = digit_product + out / _BASE
    return out * unit


@product_of_digits.def_vmap
def _digits_of_a_batch(batch: int, batched: list[bool], rows: jax.Array, weight: jax.Array) -> tuple[jax.Array, bool]:
    assert batched == [True, False], "weights are shared"
    return product_of_digits(rows.reshape(-1, rows.shape[-1]), weight).reshape(batch, rows.shape[1], -1), True
