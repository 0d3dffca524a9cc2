"""Chat with int8 weights: the tokens of a torch model that has the same rounded weights."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from hfjax_app.chat import ChatEngine, SamplingParams
from hfjax_app.runtime.checkpoints import int8
from hfjax_app.runtime.module import Weights
from tests.chat.model.test_architectures import make_model


def with_rounded_weights(folder: Path) -> PreTrainedModel:
    rounded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for name in int8.sources(rounded):
        weight = rounded.get_parameter(name)
        values, scale = int8.quantize(weight.detach())
        weight.data = values * scale[:, None]
    for name, inputs_first in int8.expert_matrices(rounded).items():
        matrices = rounded.get_parameter(name)
        values, scale = int8.quantize_experts(matrices.detach(), inputs_first)
        matrices.data = values * (scale[:, None] if inputs_first else scale[:, :, None])
    return rounded


@pytest.mark.parametrize(
    "architecture", ["falcon_mamba", *(pytest.param(name, marks=pytest.mark.slow) for name in ("jamba", "mamba2"))]
)
def test_layers_whose_weights_the_model_reads_directly(
    architecture: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """State-space models multiply by `dt_proj.weight`, and cast to the dtype of `lm_head.weight`. Both used the int8
    values as weights."""
    assert_tokens_of_the_rounded_weights(architecture, tokenizer, tmp_path)


@pytest.mark.parametrize(
    "architecture",
    ["mixtral", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpt_oss", "llama4_text", "nemotron_h"))],
)
def test_experts(architecture: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """With and without a gate and biases, inputs or outputs first, and experts that the model's own code computes."""
    weights = assert_tokens_of_the_rounded_weights(architecture, tokenizer, tmp_path)
    matrices = [weight for name, weight in weights.items() if ".experts." in name and weight.ndim == 3]
    assert len(matrices) >= 2
    assert {weight.dtype.name for weight in matrices} == {"int8"}


def assert_tokens_of_the_rounded_weights(
    architecture: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> Weights:
    make_model(architecture).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    rounded = with_rounded_weights(tmp_path)
    prompt = np.random.default_rng(0).integers(5, 128, 20).tolist()
    expected = rounded.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, 20), max_new_tokens=10, do_sample=False
    )
    options = {"slots": 1, "context": 64, "prefill_chunk": 16, "speculation": "never"}
    engine = ChatEngine.from_pretrained(tmp_path, quantize="int8", **options).start()
    got = engine.generate([prompt], SamplingParams(max_tokens=10, temperature=0.0))
    engine.stop()
    assert got == [expected[0, 20:].tolist()]
    return engine.runner.weights


def test_greedy_equals_generate_with_the_rounded_weights(
    model_of: Callable[[str], PreTrainedModel], tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    model_of("gemma3").save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    rounded = with_rounded_weights(tmp_path)
    prompts = [np.random.default_rng(n).integers(5, 512, n).tolist() for n in (3, 40)]
    expected = [
        rounded.generate(torch.tensor([p]), attention_mask=torch.ones(1, len(p)), max_new_tokens=30, do_sample=False)
        for p in prompts
    ]

    options = {"slots": 2, "context": 128, "prefill_chunk": 16, "buckets": (), "speculation": "never"}
    engine = ChatEngine.from_pretrained(tmp_path, quantize="int8", **options).start()
    got = engine.generate(prompts, SamplingParams(max_tokens=30, temperature=0.0))
    weights = engine.runner.weights
    engine.stop()
    assert got == [w[0, len(p) :].tolist() for w, p in zip(expected, prompts, strict=True)]
    linears = [weights[name] for name in int8.sources(rounded)]
    assert len(linears) == 7 * rounded.config.num_hidden_layers + 1
    assert {weight.dtype.name for weight in linears} == {"int8"}
