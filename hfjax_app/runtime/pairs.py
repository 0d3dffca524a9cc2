"""Pairs of neighbouring numbers taken apart and put together, as rotary embeddings turn them, without a TPU's copies.

A TPU's vectors are 128 numbers wide, so it keeps an array whose last axis has two numbers with another axis last, and
copies what stands before and behind. There a product with a constant matrix moves the numbers inside a row instead. It
is exact, because each result is one number times 1; a number that is not finite spreads over its row.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

_WIDEST = 256  # numbers of a row: the product costs as many operations for each
_FEWEST = 1 << 18  # numbers of an array that is worth it


def unbind(array: jax.Array, dim: int = 0) -> tuple[jax.Array, ...]:
    """The parts of an array along an axis, as aten::unbind."""
    if _moves(array.shape, array.dtype, dim):
        parts: tuple[jax.Array, jax.Array] = _by_platform(_apart, _apart_by_product, array)
        return parts
    return tuple(jnp.unstack(array, axis=dim))


def stack(arrays: Sequence[jax.Array], dim: int = 0) -> jax.Array:
    """Arrays along a new axis, as aten::stack."""
    first = arrays[0]
    together = (*first.shape, len(arrays))
    is_at_end = dim in (-1, first.ndim) and all(array.dtype == first.dtype for array in arrays)
    if is_at_end and _moves(together, first.dtype, -1):
        stacked: jax.Array = _by_platform(_together, _together_by_product, *arrays)
        return stacked
    return jnp.stack(arrays, axis=dim)


def view_as_complex(array: jax.Array) -> jax.Array:
    """Complex numbers [...] from their parts [..., 2], as aten::view_as_complex."""
    return jax.lax.complex(*unbind(array, -1))


def view_as_real(array: jax.Array) -> jax.Array:
    """The parts [..., 2] of complex numbers [...], as aten::view_as_real."""
    return stack((array.real, array.imag), -1)


def _moves(shape: tuple[int, ...], dtype: Any, dim: int) -> bool:
    """Whether numbers of an array of this shape, with pairs along `dim`, are moved by a product on a TPU."""
    if len(shape) < 2 or dim not in (-1, len(shape) - 1) or shape[-1] != 2:
        return False
    is_exact = dtype in (jnp.bfloat16, jnp.float32)
    return is_exact and shape[-2] * 2 <= _WIDEST and math.prod(shape) >= _FEWEST


def _by_platform(usual: Any, on_tpu: Any, *arrays: jax.Array) -> Any:
    return jax.lax.platform_dependent(*arrays, tpu=on_tpu, default=usual)


def _apart(array: jax.Array) -> tuple[jax.Array, jax.Array]:
    return array[..., 0], array[..., 1]


def _together(first: jax.Array, second: jax.Array) -> jax.Array:
    return jnp.stack((first, second), axis=-1)


def _apart_by_product(array: jax.Array) -> tuple[jax.Array, jax.Array]:
    count = array.shape[-2]
    row = _moved(array.reshape(*array.shape[:-2], 2 * count), _order(count))
    return row[..., :count], row[..., count:]


def _together_by_product(first: jax.Array, second: jax.Array) -> jax.Array:
    row = jnp.concatenate((first, second), axis=-1)
    return _moved(row, _order(first.shape[-1]).T).reshape(*first.shape, 2)


def _moved(row: jax.Array, matrix: jax.Array) -> jax.Array:
    """The rows [..., n] times a permutation [n, n]."""
    exact = None if row.dtype == jnp.bfloat16 else jax.lax.Precision.HIGHEST
    return jnp.matmul(row, matrix.astype(row.dtype), precision=exact)


def _order(pairs: int) -> jax.Array:
    """bool [2 * pairs, 2 * pairs]: the permutation that puts the first numbers of all pairs before the second ones."""
    place = jnp.arange(2 * pairs)
    return place[:, None] == 2 * (place % pairs) + place // pairs
