"""Chat with weights that stay bfloat16 on a CPU: the tokens of the same model in float32."""

import copy
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from hfjax_app.chat import ChatEngine, EngineOptions, SamplingParams
from hfjax_app.runtime.cpu.weights import may_stay_bfloat16
from hfjax_app.runtime.held_weights import device_weights
from tests.chat.model.test_architectures import CONFIGS, make_model

GREEDY = SamplingParams(max_tokens=10, temperature=0.0)
LENGTHS = (3, 20, 75)
# Reads `lm_head.weight.dtype`; has experts in one tensor; scales its embedding by a number in the embedding's dtype.
USUAL_ONES = ("falcon_mamba", "gpt_oss", "gemma2")


def generated(model: PreTrainedModel, prompts: list[list[int]], count: int = 10) -> list[list[int]]:
    ids = [torch.tensor([prompt]) for prompt in prompts]
    out = [model.generate(i, attention_mask=torch.ones_like(i), max_new_tokens=count, do_sample=False) for i in ids]
    return [tokens[0, len(prompt) :].tolist() for tokens, prompt in zip(out, prompts, strict=True)]


@pytest.mark.parametrize(
    "architecture", [*USUAL_ONES, *(pytest.param(n, marks=pytest.mark.slow) for n in CONFIGS if n not in USUAL_ONES)]
)
def test_greedy_equals_generate(architecture: str) -> None:
    """Nothing else is rounded: no activation to a layer's dtype, no scale of an embedding."""
    model = make_model(architecture)
    names = may_stay_bfloat16(model)
    with torch.no_grad():
        for name in names:
            parameter = model.get_parameter(name)
            parameter.copy_(parameter.bfloat16())
    prompts = [np.random.default_rng(length).integers(3, 128, length).tolist() for length in LENGTHS]
    options = {"slots": 3, "context": 128, "prefill_chunk": 32, "decode_chunk": 5, "buckets": ()}
    engine = ChatEngine(model, options=EngineOptions(keep_bf16=True, **options))
    in_files = copy.deepcopy(model)
    for name in names:
        in_files.get_parameter(name).data = in_files.get_parameter(name).bfloat16()
    engine.runner.load(device_weights(in_files, engine.runner.transforms))
    kept = sum(weight.nbytes for weight in engine.runner.weights.values() if weight.dtype == jnp.bfloat16)
    assert kept == sum(2 * in_files.get_parameter(name).numel() for name in names)
    engine.start()
    got = engine.generate(prompts, GREEDY)
    engine.stop()
    assert got == generated(model, prompts)


def test_weights_that_are_bfloat16_in_a_checkpoint_stay_bfloat16(
    model_of: Callable[[str], PreTrainedModel], tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """Embedding and linear layers by default; with dtype float32 all weights are float32. Covers several requests, one
    request, whose product is computed in another way, and drafts."""
    copy.deepcopy(model_of("gemma3")).to(torch.bfloat16).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    prompts = [np.random.default_rng(n).integers(5, 512, n).tolist() for n in (3, 40)]
    expected = generated(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32), prompts, 30)
    params = SamplingParams(max_tokens=30, temperature=0.0)
    options = {"slots": 2, "context": 128, "prefill_chunk": 32}
    sizes, temporaries = {}, {}
    for dtype in ("auto", "float32"):
        drafts = "always" if dtype == "auto" else "never"
        engine = ChatEngine.from_pretrained(tmp_path, dtype=dtype, speculation=drafts, **options).start()
        assert engine.generate(prompts, params) == expected
        assert engine.generate(prompts[:1], params) == expected[:1]
        weights = engine.runner.weights
        engine.stop()
        matrices = {weight.dtype.name for weight in weights.values() if weight.ndim == 2}
        assert matrices == {"bfloat16" if dtype == "auto" else "float32"}
        assert {weight.dtype.name for weight in weights.values() if weight.ndim == 1} == {"float32"}
        sizes[dtype] = sum(weight.nbytes for weight in weights.values())
        programs = engine.runner.programs.decode.values()
        temporaries[dtype] = [program.memory_analysis().temp_size_in_bytes for program in programs]
    assert sizes["auto"] < 0.55 * sizes["float32"]
    for kept, whole in zip(temporaries["auto"], temporaries["float32"], strict=True):
        assert kept < 1.1 * whole  # no weight is converted to float32 as a whole


def test_files_in_float32_are_not_rounded_because_the_config_says_bfloat16(
    model_of: Callable[[str], PreTrainedModel], tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """Some checkpoints are saved like this; transformers loads them in float32 too. Not a bit is lost."""
    model = model_of("gemma3")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"float32"', '"bfloat16"'))
    engine = ChatEngine.from_pretrained(tmp_path, slots=1, context=128, speculation="never")
    assert "bfloat16" in config.read_text()
    read, right = engine.runner.weights, device_weights(model, engine.runner.transforms)
    assert read.keys() == right.keys()
    for name, weight in right.items():
        np.testing.assert_array_equal(np.asarray(read[name]), np.asarray(weight), strict=True)
    assert {weight.dtype.name for weight in read.values()} == {"float32"}
