"""Torch modules as JAX functions: equal to torch, every weight an argument, no large constants in the program."""

import re
from concurrent.futures import ThreadPoolExecutor
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torchax
from torch import nn

from hfjax_app.runtime.module import pure_function, weights_of

MIB = 1 << 20


class Tied(nn.Module):
    """An embedding of 4 MiB tied to the output, a buffer in the state dict and one outside it, dropout in between."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(4096, 256)
        self.hidden = nn.Linear(256, 256)
        self.dropout = nn.Dropout(0.5)
        self.output = nn.Linear(256, 4096, bias=False)
        self.output.weight = self.embedding.weight
        self.register_buffer("scale", torch.rand(256))
        self.register_buffer("frequencies", torch.rand(1024, 1024), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.dropout(torch.relu(self.hidden(self.embedding(ids)))) * self.scale
        return self.output(hidden + self.frequencies[:256].mean(1))

    def encode(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"hidden": self.hidden(self.embedding(ids))}


@pytest.fixture(scope="module")
def module() -> Tied:
    return Tied().eval()


IDS = np.array([[1, 2, 4095], [7, 0, 9]], np.int32)
JAX_IDS = jnp.asarray(IDS)


def test_the_function_equals_torch(module: Tied) -> None:
    with torch.no_grad():
        expected = module(torch.from_numpy(IDS)).numpy()
    result = jax.jit(pure_function(module))(weights_of(module), IDS)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


def test_other_methods_and_pytrees_are_supported(module: Tied) -> None:
    with torch.no_grad():
        expected = module.encode(torch.from_numpy(IDS))["hidden"].numpy()
    encode = pure_function(module, lambda module, inputs: module.encode(inputs["ids"]))
    result = jax.jit(encode)(weights_of(module), {"ids": IDS})
    np.testing.assert_allclose(result["hidden"], expected, rtol=1e-4, atol=1e-4)


def test_a_module_in_training_mode_is_evaluated() -> None:
    """With dropout active, two calls would differ, and the program would need random numbers."""
    module = Tied().train()
    function, weights = pure_function(module), weights_of(module)
    np.testing.assert_array_equal(function(weights, JAX_IDS), function(weights, JAX_IDS))


def test_weights_hold_tied_ones_once_and_every_buffer(module: Tied) -> None:
    weights = weights_of(module)
    assert set(weights) == {"embedding.weight", "hidden.weight", "hidden.bias", "scale", "frequencies"}
    assert all(isinstance(value, jax.Array) for value in weights.values())


def test_tied_weights_stay_tied(module: Tied) -> None:
    """Doubling the one embedding must change the output layer too; otherwise a stale copy is in use."""
    function, weights = pure_function(module), weights_of(module)
    weights["frequencies"] = jnp.zeros((1024, 1024))
    weights["hidden.bias"] = jnp.zeros(256)
    doubled = {**weights, "embedding.weight": weights["embedding.weight"] * 2}
    np.testing.assert_allclose(function(doubled, JAX_IDS), 4 * function(weights, JAX_IDS), rtol=1e-5)


def test_the_module_itself_is_unchanged(module: Tied) -> None:
    before = {name: value.clone() for name, value in module.state_dict().items()}
    pure_function(module)(weights_of(module), JAX_IDS)
    for name, value in module.state_dict().items():
        assert type(value) is torch.Tensor
        assert torch.equal(value, before[name])


def test_parameters_are_cast_and_buffers_are_not(module: Tied) -> None:
    weights = weights_of(module, dtype=jnp.bfloat16)
    assert weights["hidden.weight"].dtype == jnp.bfloat16
    assert weights["frequencies"].dtype == jnp.float32


def largest_constant(text: str) -> int:
    """Bytes of the largest constant in StableHLO text, from the shapes in its types."""
    bits = {"f64": 64, "i64": 64, "ui64": 64, "f32": 32, "i32": 32, "ui32": 32, "bf16": 16, "f16": 16, "i1": 8}
    sizes = [0]
    for shape in re.findall(r"stablehlo\.constant .*: tensor<([^>]*)>", text):
        *dimensions, dtype = shape.split("x")
        if not re.search(r"dense<[-+.\deE]+> : tensor<" + re.escape(shape), text):  # a splat takes no memory
            sizes.append(prod(map(int, dimensions)) * bits.get(dtype, 8) // 8)
    return max(sizes)


def test_no_constant_over_a_mebibyte_is_in_the_program(module: Tied) -> None:
    """A captured weight would be a constant of the program: twice the memory, minutes of compiling, no sharding."""
    lowered = jax.jit(pure_function(module)).lower(weights_of(module), IDS)
    assert largest_constant(lowered.as_text()) <= MIB


def test_a_captured_weight_would_be_found(module: Tied) -> None:
    """The check above can fail: with the weights in a closure the program has the constant."""
    weights, function = weights_of(module), pure_function(module)
    lowered = jax.jit(lambda ids: function(weights, ids)).lower(IDS)
    assert largest_constant(lowered.as_text()) > MIB


def test_wide_dtypes_become_what_jax_has() -> None:
    """MPT's int64 range becomes int32, without a warning (filterwarnings = error)."""

    def ranges(_: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.arange(3, dtype=torch.int64, device=x.device) + x, x.to(torch.int64), x.double() * 2

    got = jax.jit(pure_function(nn.Identity(), ranges))({}, np.float32(2))
    for ours, theirs in zip(got, ranges(nn.Identity(), torch.tensor(2.0)), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), theirs.numpy())


class Listed(nn.Module):
    """Concatenates its inputs in the order of a set of their names."""

    def forward(self, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        return [inputs[name] for name in set(inputs)]


def test_sets_have_one_order_in_every_process() -> None:
    """Gemma 3's `set(config.layer_types)` gave a different program at every other start, so the cache did not help."""
    names = [f"name {number}" for number in range(100, 140)]
    outputs = pure_function(Listed())({}, {name: jnp.int32(name[5:]) for name in reversed(names)})
    assert [int(output) for output in outputs] == list(range(100, 140))


def test_a_thread_s_first_trace_leaves_no_tracer_behind() -> None:
    """torchax makes a random key for each thread when it is first needed, which may be inside a trace."""
    layer, environment = nn.Linear(3, 3), torchax.default_env()

    def trace_then_run() -> jax.Array:
        jax.jit(pure_function(layer)).trace(weights_of(layer), jax.ShapeDtypeStruct((1, 3), jnp.float32))
        run = torchax.interop.jax_jit(lambda rows: rows + 1)
        with environment:
            result: jax.Array = torchax.interop.jax_view(run(torch.ones(3, device="jax")))
        return result

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(trace_then_run).result().tolist() == [2.0, 2.0, 2.0]
