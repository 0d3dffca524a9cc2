"""Barriers after layers: one for each, and the same results."""

from collections.abc import Callable

import jax
import numpy as np
import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from hfjax_app.runtime.module import pure_function, weights_of
from hfjax_app.runtime.transforms import LayerBarriers

LAYERS = 3


def llama() -> PreTrainedModel:
    """A model whose layers return hidden states."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(
        LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS, vocab_size=64, **heads)
    )


def bloom() -> PreTrainedModel:
    """A model whose layers return a tuple."""
    return BloomForCausalLM(BloomConfig(hidden_size=32, n_layer=LAYERS, n_head=4, vocab_size=64))


@pytest.mark.parametrize("make", [llama, bloom])
def test_a_barrier_after_each_layer(make: Callable[[], PreTrainedModel]) -> None:
    torch.manual_seed(0)
    model = make().eval()
    tokens = torch.arange(12)[None]
    expected = model(tokens, use_cache=False).logits.detach().numpy()
    arguments = weights_of(model), tokens.numpy().astype(np.int32)
    forward = pure_function(model, lambda model, tokens: model(tokens, use_cache=False).logits)
    before = jax.jit(forward).lower(*arguments).as_text()
    LayerBarriers().adapt(model)
    lowered = jax.jit(lambda *arguments: forward(*arguments)).lower(*arguments)
    assert lowered.as_text().count("optimization_barrier") == before.count("optimization_barrier") + LAYERS
    np.testing.assert_allclose(lowered.compile()(*arguments), expected, atol=1e-5)
