"""Linear layers compared with torch, for one and several sequences and several dtypes, and their compiled programs."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from hfjax_app.runtime.cpu.linear import linear, product
from hfjax_app.runtime.module import pure_function
from hfjax_app.runtime.programs import Programs

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


@pytest.mark.parametrize("rows", [2, 3])
def test_sequences_share_one_product_in_which_the_weight_comes_first(rows: int) -> None:
    """Several tokens of four slots are multiplied together.

    With the weight as the second operand XLA rearranges it at every step, which took twice the time.
    """
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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("rows", [1, 2, 3, 8, 200])
@pytest.mark.parametrize(("outputs", "inputs"), [(48, 32), (50, 32), (48, 5000)])
def test_bfloat16_and_int8_weights_give_the_results_of_float32(
    dtype: str, rows: int, outputs: int, inputs: int
) -> None:
    """One, two, several and many rows, short and so long that XLA does not read in place; outputs in several parts."""
    weight = jnp.asarray(RANDOM.standard_normal((outputs, inputs)) * 20, dtype)
    x = RANDOM.standard_normal((rows, inputs)).astype(np.float32)
    got = jax.jit(product)(x, weight)
    assert got.dtype == jnp.float32
    want = x.astype(np.float64) @ np.asarray(weight, np.float64).T
    np.testing.assert_allclose(got, want, atol=1e-5 * want.std())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("rows", [1, 2, 8])
def test_a_loop_over_steps_reads_the_weights_in_place(dtype: str, rows: int) -> None:
    """XLA converted bfloat16 and int8 weights before the loop, and rearranged weights whose product had an addend."""
    size = 512
    weight, bias = jax.ShapeDtypeStruct((size, size), dtype), jax.ShapeDtypeStruct((size,), jnp.float32)

    def steps(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda _, x: x + linear(x * bias, weight, bias), x)

    x = jax.ShapeDtypeStruct((rows, size), jnp.float32)
    compiled = jax.jit(steps).lower(x, weight, bias).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < size * size / 2


def test_a_row_is_computed_once_and_not_for_each_output() -> None:
    """The loop over a product's outputs reads the row and the weights only.

    XLA had moved the normalisation before a layer into it, which cost as much as reading in place had gained.
    """
    x, weight = jax.ShapeDtypeStruct((1, 512), jnp.float32), jax.ShapeDtypeStruct((512, 512), jnp.float32)
    compiled = jax.jit(lambda x, scale, weight: linear(jax.nn.silu(x) * scale, weight)).lower(x, x, weight).compile()
    [loop] = [part for part in compiled.as_text().split("\n\n") if "f32[512,512]" in part and " reduce(" in part]
    assert sorted(re.findall(r"= (f32\[\d+,\d+\])\S* parameter", loop)) == ["f32[1,512]", "f32[512,512]"]


@pytest.mark.parametrize(
    ("dtype", "rows"), [("float32", 1), ("float32", 4), ("bfloat16", 1), ("bfloat16", 8), ("int8", 8)]
)
def test_a_few_rows_are_multiplied_in_one_loop_over_the_weights(dtype: str, rows: int) -> None:
    """XLA's library took the time of eight rows for two, and a loop for each row read the weights for each row."""
    x, weight = jax.ShapeDtypeStruct((rows, 512), jnp.float32), jax.ShapeDtypeStruct((512, 512), dtype)
    text = jax.jit(linear).lower(x, weight).compile().as_text()
    entry = text[text.index("ENTRY") :]
    name = re.search(r"(%\S+) = \S+\[512,512\]\S* parameter", entry)[1]
    readers = [line for line in entry.splitlines() if f"{name}," in line or f"{name})" in line]
    assert len(readers) == 1
    called = re.search(r"calls=(%\S+?),", readers[0])[1]
    body = text[text.index(f"{called} (") :].split("\n\n")[0]
    assert body.count(" reduce(") == 1
    assert " dot(" not in body


def test_nan_stays_nan() -> None:
    """The engine detects broken weights and states by it."""
    x = np.ones((1, 32), np.float32)
    x[0, 3] = np.nan
    program = Programs().compile("linear", linear, x, WEIGHT)  # with the app's compiler options
    assert np.isnan(program(x, WEIGHT)).all()
    weight = WEIGHT.copy()
    weight[5, 0], weight[6, 0] = np.nan, np.inf
    got = np.asarray(program(np.ones((1, 32), np.float32), weight))[0]
    assert np.flatnonzero(np.isnan(got)).tolist() == [5]
    assert np.flatnonzero(np.isinf(got)).tolist() == [6]


@pytest.mark.parametrize("rows", [1, 3])
def test_float32_weights_are_not_rounded_for_bfloat16_inputs(rows: int) -> None:
    """Accelerators compute in bfloat16; weights that an architecture keeps in float32 are multiplied in float32."""
    x = jnp.asarray(RANDOM.standard_normal((rows, 32)), jnp.bfloat16)
    got = jax.jit(linear)(x, WEIGHT)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, np.asarray(x, np.float32) @ WEIGHT.T, atol=1e-5)
