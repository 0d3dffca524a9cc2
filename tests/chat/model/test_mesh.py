"""Chat over eight simulated devices: the tokens of one device, caches in place, two all-reduces per layer."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, Qwen3Config

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

SCRIPT = """
import json, re, sys
import jax
import numpy as np
from transformers import AutoModelForCausalLM
from hfjax_app.chat import ChatEngine, SamplingParams
from hfjax_app.runtime.process import prepare
from hfjax_app.runtime.checkpoints.empty_model import empty_model
from hfjax_app.runtime.checkpoints.safetensors_reader import read

prepare()
prompts = [np.random.default_rng(n).integers(5, 512, n).tolist() for n in (3, 40)]
params = SamplingParams(max_tokens=24, temperature=0.0)
options = dict(slots=2, context=128, prefill_chunk=16, decode_chunk=4, buckets=())
for argument in sys.argv[1:]:
    folder, quantize, lanes = argument.split(":")
    many = ChatEngine.from_pretrained(folder, quantize=quantize, lanes=int(lanes), **options).start()
    model = empty_model(AutoModelForCausalLM, folder)
    one = ChatEngine(model, quantize=quantize, **options)
    one.runner.load(read(model, folder, transforms=one.runner.transforms))
    one.start()
    program = many.runner.programs.decode[2, 128]
    text, memory = program.as_text(), program.memory_analysis()
    cache = jax.tree.leaves(many.runner.cache_shape)
    held = sum(int(np.prod(leaf.sharding.shard_shape(leaf.shape))) * 4 for leaf in cache)
    print(json.dumps({
        "devices": len(jax.devices()),
        "same": many.generate(prompts, params) == one.generate(prompts, params),
        "different_tokens": len({t for answer in one.generate(prompts, params) for t in answer}),
        "collectives": re.findall(r" (all-[a-z]+|collective-[a-z]+|reduce-scatter)(?:-start)?\\(", text),
        "weights_split": sum(not w.sharding.is_fully_replicated for w in many.runner.weights.values()),
        "rows": sum(leaf.shape[1] for leaf in cache),
        "cache_split": all(not leaf.sharding.is_fully_replicated for leaf in cache),
        "in_place": memory.alias_size_in_bytes >= held,
    }))
    many.stop(), one.stop()
"""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "cases",
    [
        ["llama:none:32"],
        pytest.param(["llama:int8:1", "gemma3:none:1", "qwen3:none:1", "gemma3:int8:1"], marks=pytest.mark.slow),
    ],
    ids=["llama", "int8, gemma3, qwen3"],
)
def test_eight_devices_give_the_tokens_of_one(tmp_path: Path, cases: list[str]) -> None:
    """One process runs several cases, because imports take much of its time."""
    for name in {case.split(":")[0] for case in cases}:
        config = CONFIGS[name]
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(0, 0.15)
        model.save_pretrained(tmp_path / name)
        make_tokenizer().save_pretrained(tmp_path / name)
    arguments = [f"{tmp_path}/{case}" for case in cases]
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }
    result = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    results = dict(zip(arguments, map(json.loads, result.stdout.splitlines()), strict=True))
    for case, found in results.items():
        whole_heads = "gemma3" not in case
        assert found["devices"] == 8
        assert found["same"], case
        assert found["different_tokens"] > 1, case
        assert found["in_place"], case
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
