"""Chat over eight simulated devices: the tokens of one device, caches in place, two all-reduces per layer."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GptOssConfig,
    Llama4TextConfig,
    LlamaConfig,
    MixtralConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from tests.chat.conftest import make_tokenizer

LAYERS = 2
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": LAYERS,
    "head_dim": 16,
    "vocab_size": 512,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": 0,
}
CONFIGS = {
    # Two key-value heads per device, which share a row if it has 32 lanes.
    "llama": LlamaConfig(num_attention_heads=32, num_key_value_heads=16, **SMALL),
    # One key-value head can't be split: keys and values are replicated, queries are not.
    "gemma3": Gemma3TextConfig(
        num_attention_heads=8,
        num_key_value_heads=1,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=32,
        tie_word_embeddings=True,
        **SMALL,
    ),
    "qwen3": Qwen3Config(num_attention_heads=8, num_key_value_heads=8, **SMALL),
}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 8}
LAYER_TYPES = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 32}
MIXTURES = {
    "mixtral": MixtralConfig(num_local_experts=8, num_experts_per_tok=2, **HEADS, **SMALL),
    # Two experts on each device. Four key-value heads can't be split.
    "qwen3_moe": Qwen3MoeConfig(
        num_attention_heads=8,
        num_key_value_heads=4,
        num_experts=16,
        num_experts_per_tok=4,
        moe_intermediate_size=64,
        **SMALL,
    ),
    "gpt_oss": GptOssConfig(num_local_experts=8, num_experts_per_tok=2, **HEADS, **LAYER_TYPES, **SMALL),
    "gemma4": Gemma4TextConfig(
        enable_moe_block=True,
        num_experts=8,
        top_k_experts=2,
        moe_intermediate_size=64,
        global_head_dim=16,
        hidden_size_per_layer_input=0,
        **HEADS,
        **LAYER_TYPES,
        **SMALL,
    ),
    "llama4": Llama4TextConfig(
        num_local_experts=8,
        num_experts_per_tok=1,
        intermediate_size_mlp=128,
        interleave_moe_layer_step=1,
        **HEADS,
        **SMALL,
    ),
    # Six experts: each device has a part of all.
    "six": MixtralConfig(num_local_experts=6, num_experts_per_tok=2, **HEADS, **SMALL),
}

SCRIPT = """
import json, re, sys
import jax
import numpy as np
import torch
from transformers import AutoModelForCausalLM
from hfjax_app.chat import ChatEngine, EngineOptions, SamplingParams
from hfjax_app.runtime.process import prepare
from hfjax_app.runtime.checkpoints.empty_model import empty_model
from hfjax_app.runtime.checkpoints.safetensors_reader import read

prepare()
prompts = [np.random.default_rng(n).integers(5, 512, n).tolist() for n in (3, 40)]
params = SamplingParams(max_tokens=24, temperature=0.0)
options = dict(slots=2, context=128, prefill_chunk=16, decode_chunk=4, buckets=(), end_tokens=())
def by_torch(folder):
    model, made = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
        made.append(out[0, len(prompt):].tolist())
    return made

def by_one_device(folder, quantize):
    model = empty_model(AutoModelForCausalLM, folder)
    one = ChatEngine(model, options=EngineOptions(quantize=quantize, **options))
    one.runner.load(read(model, folder, transforms=one.runner.transforms))
    try:
        return one.start().generate(prompts, params)
    finally:
        one.stop()

for argument in sys.argv[1:]:
    folder, quantize, lanes = argument.split(":")
    many = ChatEngine.from_pretrained(folder, quantize=quantize, lanes=int(lanes), **options).start()
    right = by_torch(folder) if quantize == "none" else by_one_device(folder, quantize)
    program = many.runner.programs.decode[2, 128]
    text, memory = program.as_text(), program.memory_analysis()
    cache = jax.tree.leaves(many.runner.cache_shape)
    experts = [weight for name, weight in many.runner.weights.items() if ".experts." in name]
    held = sum(int(np.prod(leaf.sharding.shard_shape(leaf.shape))) * 4 for leaf in cache)
    print(json.dumps({
        "devices": len(jax.devices()),
        "same": many.generate(prompts, params) == right,
        "different_tokens": len({t for answer in right for t in answer}),
        "collectives": re.findall(r" (all-[a-z]+|collective-[a-z]+|reduce-scatter)(?:-start)?\\(", text),
        "weights_split": sum(not w.sharding.is_fully_replicated for w in many.runner.weights.values()),
        "rows": sum(leaf.shape[1] for leaf in cache),
        "cache_split": all(not leaf.sharding.is_fully_replicated for leaf in cache),
        "in_place": memory.alias_size_in_bytes >= held,
        "experts_on_each": sum(weight.addressable_shards[0].data.nbytes for weight in experts),
        "experts": sum(weight.nbytes for weight in experts),
    }))
    many.stop()
"""


def on_eight_devices(folder: Path, cases: list[str]) -> dict[str, dict[str, Any]]:
    """What the script says of each case; one process runs all, because imports take much of its time."""
    for name in {case.split(":")[0] for case in cases}:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config((CONFIGS | MIXTURES)[name])
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(0, 0.15)
        model.save_pretrained(folder / name)
        make_tokenizer().save_pretrained(folder / name)
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }
    command = [sys.executable, "-c", SCRIPT, *(f"{folder}/{case}" for case in cases)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    results = dict(zip(cases, map(json.loads, result.stdout.splitlines()), strict=True))
    for case, found in results.items():
        assert found["devices"] == 8
        assert found["same"], case
        assert found["different_tokens"] > 1, case
        assert found["in_place"], case
    return results


@pytest.fixture(scope="module")
def usual_ones(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Those of `make test`, from one process."""
    return on_eight_devices(tmp_path_factory.mktemp("usual"), ["llama:none:32", "qwen3_moe:none:1"])


@pytest.fixture
def found_of(cases: list[str], usual_ones: dict[str, dict[str, Any]], tmp_path: Path) -> dict[str, dict[str, Any]]:
    if usual_ones.keys() >= set(cases):
        return {case: usual_ones[case] for case in cases}
    return on_eight_devices(tmp_path, cases)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "cases",
    [
        ["llama:none:32"],
        pytest.param(["llama:int8:1", "gemma3:none:1", "qwen3:none:1", "gemma3:int8:1"], marks=pytest.mark.slow),
    ],
    ids=["llama", "int8, gemma3, qwen3"],
)
def test_eight_devices_give_the_tokens_of_one(cases: list[str], found_of: dict[str, dict[str, Any]]) -> None:
    """Of torch, or of int8 weights on one device."""
    for case, found in found_of.items():
        whole_heads = "gemma3" not in case
        if case.endswith(":32"):
            assert found["rows"] == 2 * LAYERS * 8, case
        # The vocabulary and every projection, but keys and values only if their heads can be split.
        assert found["weights_split"] >= LAYERS * (7 if whole_heads else 5) + 1, case
        assert found["cache_split"] == whole_heads, case
        # Two per layer, and one for the lookup in a split embedding; the logits are gathered at the end.
        collectives = Counter(found["collectives"])
        assert collectives.keys() <= {"all-reduce", "all-gather"}, (case, collectives)
        assert collectives["all-reduce"] <= 2 * LAYERS + 1, (case, collectives)
        assert collectives["all-gather"] <= 1, (case, collectives)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "cases",
    [
        ["qwen3_moe:none:1"],
        pytest.param(
            [
                f"{name}:{way}:1"
                for name in MIXTURES
                for way in ("none", "int8")
                if (name, way) != ("qwen3_moe", "none")
            ],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["qwen3_moe", "others"],
)
def test_eight_devices_share_the_experts(cases: list[str], found_of: dict[str, dict[str, Any]]) -> None:
    """Each holds an eighth of them, in bytes; their results are added up, once in each layer."""
    for case, found in found_of.items():
        scales = 1.5 if "int8" in case and "six" in case else 1  # on every device
        assert found["experts_on_each"] * 8 <= found["experts"] * scales, case
        if "six" not in case:
            collectives = Counter(found["collectives"])
            assert collectives["all-reduce"] <= 3 * LAYERS + 1, (case, collectives)
            assert "all-to-all" not in collectives, (case, collectives)
