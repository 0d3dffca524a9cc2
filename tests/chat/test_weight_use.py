"""What a step reads of a model's weights: not an embedding that is looked up, few experts, no vision tower."""

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3Config,
    LlamaConfig,
    MixtralConfig,
    PreTrainedConfig,
    Qwen3MoeConfig,
)

from hfjax_app.chat.model.model_runner import ModelRunner
from hfjax_app.chat.options import EngineOptions
from hfjax_app.chat.plan import WeightUse, weight_use

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
}


def use_of(config: PreTrainedConfig, quantize: str = "none") -> tuple[ModelRunner, WeightUse]:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    runner = ModelRunner(model, EngineOptions(quantize=quantize, slots=1, context=64, end_tokens=()))
    return runner, weight_use(runner.decoder, model, runner.weights)


def bytes_of(runner: ModelRunner, *parts: str) -> int:
    """Of the weights whose names have one of the parts; `original_inv_freq` is read by no forward."""
    named = [(name, weight) for name, weight in runner.weights.items() if "original" not in name]
    return sum(w.size * w.dtype.itemsize for name, w in named if any(part in name for part in parts))


@pytest.mark.parametrize(("tied", "quantize"), [(True, "none"), (False, "none"), (True, "int8")])
def test_a_tied_embedding_is_read_by_the_output_layer_unless_that_is_int8(tied: bool, quantize: str) -> None:
    runner, use = use_of(LlamaConfig(tie_word_embeddings=tied, **SIZES), quantize)
    looked_up = 0 if (tied, quantize) == (True, "none") else 64 * 32 * 4
    assert use.read() == use.read(1) == bytes_of(runner, "") - looked_up
    assert use.output == 64 * 32
    assert use.products == 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * 48)


@pytest.mark.parametrize("kind", [MixtralConfig, Qwen3MoeConfig])
def test_a_token_reads_the_experts_that_it_chooses(kind: type[PreTrainedConfig]) -> None:
    """Two of eight: a quarter of the experts' bytes and products; of two tokens 1 - (3/4)^2."""
    sizes = {**SIZES, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    runner, use = use_of(kind(num_local_experts=8, num_experts=8, **sizes))
    experts = bytes_of(runner, ".experts.")
    rest = bytes_of(runner, "") - experts - bytes_of(runner, "embed_tokens")
    assert experts == 2 * 8 * 3 * 32 * 48 * 4
    assert [use.read(tokens) - rest for tokens in (1, 2)] == [experts // 4, experts * 7 // 16]
    assert use.read() == rest + experts
    assert use.products == (rest - bytes_of(runner, "norm", "inv_freq", "lm_head")) / 4 + experts / 4 / 4


def test_a_vision_tower_is_not_read() -> None:
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**SIZES, "sliding_window": 32, "layer_types": ["sliding_attention", "full_attention"]}
    runner, use = use_of(Gemma3Config(text_config=text, vision_config={**vision, "image_size": 28, "patch_size": 14}))
    assert bytes_of(runner, "vision_tower", "projector") > 0
    assert use.read() <= bytes_of(runner, "language_model", "lm_head")
    assert use.read() >= bytes_of(runner, "language_model") - bytes_of(runner, "norm", "inv_freq", "embed_scale")
