"""bfloat16 weights with float32 arithmetic: which weights, tied ones once, and the results of the layers."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig

from hfjax_app.runtime.checkpoints.empty_model import empty_model, saved_dtype
from hfjax_app.runtime.checkpoints.safetensors_reader import read
from hfjax_app.runtime.cpu.weights import Bf16Weights, may_stay_bfloat16
from hfjax_app.runtime.held_weights import shapes
from hfjax_app.runtime.model_transform import Transforms
from hfjax_app.runtime.module import pure_function

SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "head_dim": 8}


def checkpoint(folder: Path, *, tied: bool = True) -> None:
    torch.manual_seed(0)
    config = Gemma3TextConfig(vocab_size=64, tie_word_embeddings=tied, **SMALL)
    Gemma3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


@pytest.mark.parametrize("tied", [False, True])
def test_linear_layers_and_the_embedding_keep_the_dtype_of_the_files(tied: bool, tmp_path: Path) -> None:
    checkpoint(tmp_path, tied=tied)
    model = empty_model(AutoModelForCausalLM, tmp_path, torch.float32)
    names = may_stay_bfloat16(model)
    transforms = Transforms(Bf16Weights(model))
    weights, wide = read(model, tmp_path, transforms=transforms), read(model, tmp_path)
    assert saved_dtype(tmp_path) == torch.bfloat16
    assert len(names) == 7 + (1 if tied else 2)
    assert {name for name, weight in weights.items() if weight.dtype == jnp.bfloat16} == names
    for name, weight in weights.items():
        assert wide[name].dtype == jnp.float32
        np.testing.assert_array_equal(np.asarray(weight, np.float32), wide[name])
    planned = shapes(model, transforms, saved_dtype=torch.bfloat16)
    assert {name: (shape.shape, shape.dtype) for name, shape in planned.items()} == {
        name: (value.shape, value.dtype) for name, value in weights.items()
    }


def test_logits_are_those_of_torch_in_float32(tmp_path: Path) -> None:
    """Gemma's embedding has its own class, which multiplies by a number in the dtype of its weights.

    Rounded to bfloat16, that number would be a different one.
    """
    checkpoint(tmp_path)
    model = empty_model(AutoModelForCausalLM, tmp_path, torch.float32)
    transforms = Transforms(Bf16Weights(model))
    weights = read(model, tmp_path, transforms=transforms)
    transforms.adapt(model)
    ids = torch.arange(20)[None]
    function = jax.jit(pure_function(model, lambda model, ids: model(ids, use_cache=False).logits))
    want = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)(ids).logits.detach()
    np.testing.assert_allclose(function(weights, jnp.asarray(ids.numpy())), want, atol=1e-5)


def test_a_loop_looks_rows_up_in_place() -> None:
    """XLA converted the whole embedding before the loop, which used all the memory that had been saved."""
    layer = torch.nn.Embedding(4096, 64, device="meta")
    Bf16Weights(layer).adapt(layer)
    lookup = pure_function(layer)

    def steps(weights: dict[str, jax.Array], token: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda _, token: jnp.argmax(lookup(weights, token)[0])[None], token)

    weights = {"weight": jax.ShapeDtypeStruct((4096, 64), jnp.bfloat16)}
    compiled = jax.jit(steps).lower(weights, jax.ShapeDtypeStruct((1,), jnp.int32)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 64 * 1024


def test_only_unshared_weights_of_linear_layers_and_embeddings() -> None:
    class Own(torch.nn.Linear):
        pass

    class Mixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = torch.nn.Embedding(8, 4), torch.nn.Linear(4, 8)
            self.head.weight = self.table.weight
            self.norm, self.own, self.shared = torch.nn.LayerNorm(4), Own(4, 4), torch.nn.Linear(4, 4)
            self.also = self.shared.weight

    model = Mixed()
    assert may_stay_bfloat16(model) == {"table.weight"}
    Bf16Weights(model).adapt(model)
    assert type(model.own) is Own
    assert type(model.shared) is torch.nn.Linear
    assert model.head._parameters["weight"] is model.table._parameters["weight"]
