"""int8 weights: their error, the weights that are not quantised, and no whole float weights in memory."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from hfjax_app.runtime.checkpoints.empty_model import empty_model
from hfjax_app.runtime.checkpoints.int8 import Int8, int8_dot, quantize, sources
from hfjax_app.runtime.checkpoints.safetensors_reader import read
from hfjax_app.runtime.cpu.linear import product_of_digits
from hfjax_app.runtime.dtype_policy import Cast
from hfjax_app.runtime.held_weights import shapes
from hfjax_app.runtime.model_transform import Transforms
from hfjax_app.runtime.module import pure_function

SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 64}


def int8_of(model: torch.nn.Module) -> Transforms:
    return Transforms(Int8(model), Cast(model))


def test_a_weight_is_within_half_a_step_of_its_row() -> None:
    """Each output channel has its own scale, so a small row keeps its precision beside a large one; no clipping."""
    torch.manual_seed(0)
    weight = torch.randn(5000, 300) * torch.logspace(-3, 3, 5000)[:, None]
    weight[7] = 0
    values, scale = (tensor.numpy() for tensor in quantize(weight))
    assert (values.dtype, scale.dtype, values.shape, scale.shape) == (np.int8, np.float32, (5000, 300), (5000,))
    assert np.abs(values).max(1).tolist() == [0 if row == 7 else 127 for row in range(5000)]
    error = np.abs(values * scale[:, None] - weight.numpy())
    assert (error <= 0.5001 * scale[:, None]).all()
    assert (values[7] == 0).all()


def test_bfloat16_weights_are_quantised_in_float32() -> None:
    weight = torch.randn(16, 64).to(torch.bfloat16)
    for got, expected in zip(quantize(weight), quantize(weight.float()), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("shape", [(1, 300), (3, 300), (2, 5, 300)])
@pytest.mark.parametrize("rows", [1, 64, 9001])
def test_the_dot_equals_the_dequantised_one(shape: tuple[int, ...], rows: int) -> None:
    """Also if the rows are no multiple of a block, and under vmap, as in decoding."""
    rng = np.random.default_rng(0)
    values = rng.integers(-127, 128, (rows, 300), dtype=np.int8)
    scale = rng.random(rows, dtype=np.float32)
    x = rng.standard_normal(shape, dtype=np.float32)
    expected = x @ (values * scale[:, None]).T
    for function in (int8_dot, jax.vmap(int8_dot, (0, None, None))):
        np.testing.assert_allclose(jax.jit(function)(x, values, scale), expected, rtol=1e-4, atol=1e-3)


def test_a_sum_that_int32_can_not_hold_is_right() -> None:
    """The sum of 140,000 products of 127 and 127 exceeds 2^31."""
    values = np.full((2, 140_000), 127, np.int8)
    values[1] = -127
    got = jax.jit(int8_dot)(np.ones((1, 140_000), np.float32), values, np.full(2, 0.5, np.float32))
    np.testing.assert_allclose(got, [[140_000 * 63.5, -140_000 * 63.5]], rtol=1e-2)


@pytest.mark.parametrize("rows", [1, 5, 200])
def test_integer_products_are_as_exact_as_float32(rows: int) -> None:
    """The form for a CPU with an int8 matrix unit, tested on any CPU; also under vmap."""
    rng = np.random.default_rng(1)
    values = rng.integers(-127, 128, (64, 300), dtype=np.int8)
    x = rng.standard_normal((4, rows, 300), dtype=np.float32) * np.float32([1e-20, 1, 0, 1e20])[:, None, None]
    got = jax.jit(jax.vmap(product_of_digits, (0, None)))(x, values)
    want = x.astype(np.float64) @ values.T.astype(np.float64)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6 * other.std())


@pytest.mark.parametrize("batch", [1, 4])
def test_the_float_weights_are_never_in_memory(batch: int) -> None:
    """32 MiB as float32; the compiler's figure of temporary memory is one block."""
    x = jax.ShapeDtypeStruct((batch, 1, 1024), jnp.float32)
    values = jax.ShapeDtypeStruct((8192, 1024), jnp.int8)
    scale = jax.ShapeDtypeStruct((8192,), jnp.float32)
    compiled = jax.jit(jax.vmap(int8_dot, (0, None, None))).lower(x, values, scale).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= 6 << 20


@pytest.mark.parametrize("tied", [False, True])
def test_a_checkpoint_in_int8(tied: bool, tmp_path: Path) -> None:
    """Linear layers are int8, also an output layer that is tied to the embedding; the embedding is unchanged."""
    LlamaForCausalLM(LlamaConfig(tie_word_embeddings=tied, **SMALL)).save_pretrained(tmp_path)
    model = empty_model(AutoModelForCausalLM, tmp_path, torch.float32)
    weights, plain = read(model, tmp_path, transforms=int8_of(model)), read(model, tmp_path)
    quantized = {name for name, value in weights.items() if value.dtype == jnp.int8}
    assert "lm_head.weight" in quantized
    assert len(quantized) == 8
    assert ("lm_head.weight" in plain) == (not tied)
    for name in quantized:
        scale = weights[name.removesuffix("weight") + "scale"]
        whole = plain.get(name, plain["model.embed_tokens.weight"])
        np.testing.assert_allclose(weights[name] * scale[:, None], whole, atol=0.51 * float(scale.max()))
    for name in plain.keys() - quantized:
        np.testing.assert_array_equal(weights[name], plain[name])
    planned = {name: (shape.shape, shape.dtype) for name, shape in shapes(model, int8_of(model)).items()}
    assert planned == {name: (value.shape, value.dtype) for name, value in weights.items()}


def test_logits_of_a_tied_model_are_torch_s_with_the_rounded_weights(tmp_path: Path) -> None:
    """The output layer's weights are rounded and the embedding's are not, although the checkpoint has one tensor."""
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(tie_word_embeddings=True, **SMALL)).save_pretrained(tmp_path)
    rounded = LlamaForCausalLM.from_pretrained(tmp_path)
    for name in sources(rounded):
        layer = rounded.get_submodule(name.removesuffix(".weight"))
        values, scale = quantize(layer.weight.detach())
        layer.weight = torch.nn.Parameter(values * scale[:, None])
    assert not torch.equal(rounded.lm_head.weight, rounded.model.embed_tokens.weight)

    model = empty_model(AutoModelForCausalLM, tmp_path)
    weights = read(model, tmp_path, transforms=int8_of(model))
    int8_of(model).adapt(model)
    ids = torch.arange(20)[None]
    function = jax.jit(pure_function(model, lambda model, ids: model(ids, use_cache=False).logits))
    np.testing.assert_allclose(function(weights, jnp.asarray(ids.numpy())), rounded(ids).logits.detach(), atol=1e-5)


def test_a_parameter_that_a_later_embedding_shares_is_not_quantised() -> None:
    """Its only name is that of the linear layer."""

    class OutputFirst(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.other = torch.nn.Linear(4, 8, bias=False), torch.nn.Linear(4, 4)
            self.embedding = torch.nn.Embedding(8, 4)
            self.embedding.weight = self.head.weight

    assert sources(OutputFirst()) == {"other.weight": "other.weight"}


def test_few_slots_never_have_the_converted_weights_in_memory() -> None:
    """Four slots of a decode step: XLA used to convert the weights before the loop, at three times the cost."""
    x = np.random.default_rng(0).standard_normal((4, 1, 512)).astype(np.float32)
    weight = np.random.default_rng(1).integers(-127, 128, (1024, 512)).astype(np.int8)
    scale = np.full(1024, 0.5, np.float32)
    together = jax.jit(jax.vmap(int8_dot, (0, None, None))).lower(x, weight, scale).compile()
    np.testing.assert_allclose(together(x, weight, scale), x @ (weight * scale[:, None]).T, rtol=1e-4, atol=0.02)
    assert together.memory_analysis().temp_size_in_bytes < weight.size
