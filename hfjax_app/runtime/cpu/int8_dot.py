"""Products with int8 weights on a CPU: converted where they are read, or by the int8 matrix unit (AMX).

Does not quantise: `checkpoints/int8.py` does.
"""

from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp

from hfjax_app.runtime.cpu.linear import product

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
def _rows_of_a_batch(batch: int, batched: list[bool], rows: jax.Array, weight: jax.Array) -> tuple[jax.Array, bool]:
    assert batched == [True, False], "weights are shared"
    return product_of_digits(rows.reshape(-1, rows.shape[-1]), weight).reshape(batch, rows.shape[1], -1), True
