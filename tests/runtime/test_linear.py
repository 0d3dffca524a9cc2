"""Linear layers against torch, alone and over several sequences, and the order of operands that XLA ends up with."""

import re

import jax
import numpy as np
import pytest
import torch

from hfjax_app.runtime.linear import linear
from hfjax_app.runtime.module import pure_function

RANDOM = np.random.default_rng(0)
WEIGHT, BIAS = RANDOM.standard_normal((48, 32)).astype(np.float32), RANDOM.standard_normal(48).astype(np.float32)


@pytest.mark.parametrize("shape", [(32,), (1, 32), (2, 32), (1, 5, 32), (3, 100, 32), (2, 3, 4, 32)])
@pytest.mark.parametrize("bias", [None, BIAS])
def test_equals_torch(shape: tuple[int, ...], bias: np.ndarray | None) -> None:
    """One row, few and many, through torch's own function."""
    x = RANDOM.standard_normal(shape).astype(np.float32)
    layer = torch.nn.Linear(32, 48, bias=bias is not None)
    weights = {"weight": WEIGHT} if bias is None else {"weight": WEIGHT, "bias": bias}
    got = jax.jit(pure_function(layer))(jax.tree.map(jax.numpy.asarray, weights), x)
    want = torch.nn.functional.linear(*(None if a is None else torch.tensor(a) for a in (x, WEIGHT, bias)))
    np.testing.assert_allclose(got, want.numpy(), atol=1e-5)


@pytest.mark.parametrize("rows", [1, 3])
def test_sequences_share_one_product_in_which_the_weight_comes_first(rows: int) -> None:
    """Four slots of a decode step: their rows are multiplied together. With the weight as the second operand, XLA
    rearranges it at every step, which took twice the time."""
    x = RANDOM.standard_normal((4, 1, rows, 32)).astype(np.float32)
    compiled = jax.jit(lambda x, w: jax.vmap(linear, (0, None))(x, w)).lower(x, WEIGHT).compile()
    np.testing.assert_allclose(compiled(x, WEIGHT), x @ WEIGHT.T, atol=1e-5)
    products = re.findall(r"dot\(([^,]*), ([^)]*)\)", compiled.as_text())
    assert len(products) == 1
    shapes = dict(re.findall(r"(%[\w.]+) = \w+(\[[\d,]*\])", compiled.as_text()))
    assert [shapes[operand.split()[-1]] for operand in products[0]] == ["[48,32]", f"[32,{4 * rows}]"]


def test_weights_per_sequence_work_too() -> None:
    x, weights = RANDOM.standard_normal((3, 2, 32)), RANDOM.standard_normal((3, 48, 32))
    x, weights = x.astype(np.float32), weights.astype(np.float32)
    np.testing.assert_allclose(jax.vmap(linear)(x, weights), x @ weights.swapaxes(1, 2), atol=1e-5)
    np.testing.assert_allclose(jax.vmap(linear, (None, 0))(x[0], weights), x[0] @ weights.swapaxes(1, 2), atol=1e-5)


@pytest.mark.parametrize("rows", [1, 3, 200])
def test_gradients_equal_torch(rows: int) -> None:
    """Explanations of a classifier differentiate its layers."""
    x = RANDOM.standard_normal((rows, 32)).astype(np.float32)
    got = jax.jit(jax.grad(lambda x: (linear(x, WEIGHT, BIAS) ** 2).sum()))(x)
    leaf = torch.tensor(x, requires_grad=True)
    (torch.nn.functional.linear(leaf, torch.tensor(WEIGHT), torch.tensor(BIAS)) ** 2).sum().backward()
    np.testing.assert_allclose(got, leaf.grad.numpy(), rtol=1e-4, atol=1e-3)
