"""Our lowerings against torch itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from hfjax_app.runtime.module import pure_function
from hfjax_app.runtime.operators import grouped_mm


@pytest.mark.parametrize("size", [(8, 10), (4, 15), (7, 6), (3, 4)])
def test_upsample_nearest_equals_torch(size: tuple[int, int]) -> None:
    """Whole and broken factors, up and down."""
    image = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    upsample = torch.nn.Upsample(size=size)
    got = jax.jit(pure_function(upsample))({}, image)
    np.testing.assert_array_equal(np.asarray(got), upsample(torch.from_numpy(image)).numpy())


def test_upsample_nearest_by_a_factor_equals_torch() -> None:
    """The overload without a size."""
    image = np.random.default_rng(0).standard_normal((1, 2, 3, 3)).astype(np.float32)
    upsample = torch.nn.Upsample(scale_factor=2.0)
    got = jax.jit(pure_function(upsample))({}, image)
    np.testing.assert_array_equal(np.asarray(got), upsample(torch.from_numpy(image)).numpy())


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gelu_equals_torch(approximate: str, dtype: torch.dtype) -> None:
    """On both sides of zero, and far out, where the exact result is all but zero. Half precision: the last digit."""
    x = torch.linspace(-12, 12, 97).to(dtype)
    module = torch.nn.GELU(approximate)
    got = jax.jit(pure_function(module))(
        {}, jnp.asarray(x.float().numpy(), "float32" if x.itemsize == 4 else "bfloat16")
    )
    exact = {torch.float32: {"rtol": 1e-6, "atol": 1e-6}, torch.bfloat16: {"rtol": 2**-7, "atol": 1e-2}}[dtype]
    np.testing.assert_allclose(np.asarray(got, np.float32), module(x).float().numpy(), **exact)


def expert_products(rows: np.ndarray, matrices: np.ndarray, sizes: list[int]) -> np.ndarray:
    parts = np.split(rows, np.cumsum(sizes)[:-1])
    return np.concatenate([part @ matrix for part, matrix in zip(parts, matrices, strict=True)])


def test_grouped_products_equal_one_product_a_group() -> None:
    """A mixture of experts, its tokens sorted by expert; one expert has none."""
    generator = np.random.default_rng(0)
    rows, matrices = (generator.standard_normal(shape).astype(np.float32) for shape in ((7, 6), (4, 6, 5)))
    offsets = np.cumsum([2, 0, 4, 1]).astype(np.int32)
    product = pure_function(
        torch.nn.Identity(), lambda _, *args: torch.nn.functional.grouped_mm(*args[:2], offs=args[2])
    )
    got = jax.jit(product)({}, rows, matrices, offsets)
    np.testing.assert_allclose(np.asarray(got), expert_products(rows, matrices, [2, 0, 4, 1]), atol=1e-5)


def test_grouped_products_of_several_sequences_read_each_matrix_once() -> None:
    """Slots decode under vmap: one ragged product for all of them, not one for each."""
    generator = np.random.default_rng(0)
    rows, matrices = (generator.standard_normal(shape).astype(np.float32) for shape in ((3, 7, 6), (4, 6, 5)))
    sizes = [[2, 0, 4, 1], [7, 0, 0, 0], [1, 2, 2, 2]]
    offsets = np.cumsum(sizes, axis=1).astype(np.int32)
    product = jax.vmap(grouped_mm, in_axes=(0, None, 0))
    got = jax.jit(product)(rows, matrices, offsets)
    for one, sequence, counts in zip(np.asarray(got), rows, sizes, strict=True):
        np.testing.assert_allclose(one, expert_products(sequence, matrices, counts), atol=1e-5)
    assert str(jax.make_jaxpr(product)(rows, matrices, offsets)).count("ragged_dot_general[") == 1
