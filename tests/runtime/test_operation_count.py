"""Operations of traced functions, by hand."""

import jax
import jax.numpy as jnp

from hfjax_app.runtime.program_report import operations


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def test_products_and_convolutions_count_twice_their_multiplications() -> None:
    assert operations(jnp.matmul, floats(3, 4), floats(4, 5)) == 2 * 3 * 4 * 5
    assert operations(lambda x, y: jnp.einsum("bij,bjk->bik", x, y), floats(2, 3, 4), floats(2, 4, 5)) == 2 * 120
    convolve = lambda x, y: jax.lax.conv(x, y, (1, 1), "SAME")  # noqa: E731
    assert operations(convolve, floats(1, 3, 8, 8), floats(7, 3, 2, 2)) == 2 * 7 * 8 * 8 * 3 * 2 * 2
    grouped = lambda x, y: jax.lax.conv_general_dilated(x, y, (1, 1), "SAME", feature_group_count=4)  # noqa: E731
    assert operations(grouped, floats(1, 4, 8, 8), floats(4, 1, 3, 3)) == 2 * 4 * 8 * 8 * 9


def test_calls_count_as_often_as_they_run() -> None:
    """Loops of a known length, jitted functions, and one branch of several."""
    inner = jax.jit(lambda x: x @ x)
    assert operations(lambda x: inner(inner(x)), floats(3, 3)) == 2 * 54
    assert operations(lambda x: jax.lax.scan(lambda y, _: (y @ y, None), x, None, 5), floats(3, 3)) == 5 * 54
    assert operations(lambda x: jax.lax.map(inner, x), floats(7, 3, 3)) == 7 * 54
    either = lambda x: jax.lax.platform_dependent(x, cpu=lambda y: y @ y @ y, default=lambda y: y @ y)  # noqa: E731
    assert operations(either, floats(3, 3)) == 54
