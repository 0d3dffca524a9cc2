"""The plan command on configs of real models: every program through the TPU's own compiler, no weights, no TPU.

Two layers of each in `make test`; whole models, minutes each, in `make test-tpu`.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import Gemma3TextConfig, LlamaConfig

from tests.chat.conftest import make_tokenizer

ROOT = Path(__file__).parents[2]
GIB = 1 << 30
LAYERS = {"gemma-3-1b": 26, "llama-3.2-1b": 16, "llama-3.1-8b": 32}

needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")


def config_of(name: str, layers: int) -> Any:
    """Shapes as published in each model's config.json."""
    if name == "gemma-3-1b":
        return Gemma3TextConfig(
            hidden_size=1152,
            intermediate_size=6912,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=1,
            head_dim=256,
            vocab_size=262144,
            sliding_window=512,
            # every sixth layer is full in the model; two layers shall have one of each
            **({} if layers > 2 else {"layer_types": ["sliding_attention", "full_attention"]}),
        )
    small = name == "llama-3.2-1b"
    return LlamaConfig(
        hidden_size=2048 if small else 4096,
        intermediate_size=8192 if small else 14336,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64 if small else 128,
        vocab_size=128256,
        max_position_embeddings=131072,
        tie_word_embeddings=small,
    )


# jax's own knob: the compiler looks less far for what runs faster, and takes a quarter less time.
HASTY = {"JAX_EXEC_TIME_OPTIMIZATION_EFFORT": "-1.0"}


def plan(folder: Path, name: str, layers: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    config_of(name, layers).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    command = [sys.executable, "-m", "hfjax_app", "plan", "--chat-model", str(folder), "--json", *arguments]
    environment = os.environ | (HASTY if layers <= 2 else {})
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def copied(leaves: list[list[int | None]], count: int, rows: int, slots: int, context: int) -> int:
    """Bytes of the rows that a decode program of a tier copies: none where it works on the whole cache.

    Args:
        leaves: bytes of a row of a slot, and how many rows there are at most, None: as the context.
        count, rows: of the tier.
        slots, context: of the cache.
    """
    if (count, rows) == (slots, context):
        return 0
    return count * sum(size * min(rows, most or context) for size, most in leaves)


def check(
    folder: Path, name: str, topology: str, layers: int, slots: int, context: int, speculation: str = "auto"
) -> dict[str, Any]:
    options = ("--slots", str(slots), "--context", str(context), "--speculation", speculation)
    result = plan(folder, name, layers, "--topology", topology, *options)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    need, programs = found["chat"]["need"], found["chat"]["programs"]
    config = config_of(name, layers)
    largest = config.vocab_size * config.hidden_size * 2 // found["chips"]
    assert found["fits"] is True
    assert {program["name"].partition("_")[0] for program in programs} == {"chat"}
    assert programs[-1]["name"] == "chat_score"
    assert any(p["name"].startswith("chat_speculate") for p in programs) == (speculation != "never")
    for program in programs:
        of_slots = program["name"] != "chat_score"
        if of_slots:
            assert program["in_place"] >= need["cache"], "the cache is copied instead of reused"
        if program["name"].startswith(("chat_prefill", "chat_decode", "chat_speculate", "chat_score")):
            # What is a constant of the program is no argument of it.
            assert program["arguments"] >= need["weights"] + of_slots * need["cache"]
            assert program["constant"] <= 1 << 20
            # No weights of a layer are copied, transposed or converted before they are used. Logits may be.
            assert program["moved"] < config.hidden_size * config.intermediate_size * 2 // found["chips"]
            # The output layer's weights, gathered from all chips, would be temporary memory. Besides, labels go on in
            # caches of their own.
            assert program["temporary"] < largest // 2 + (program["in_place"] if of_slots else largest // 2)
            if tier := re.fullmatch(r"chat_decode_(\d+)x(\d+)", program["name"]):
                assert (
                    program["temporary"]
                    < copied(need["slot"]["rows"], *map(int, tier.groups()), slots, context) + GIB // 10
                )
            if topology.endswith("1x1"):
                assert program["temporary"] < need["weights"] // 8
            # Two a layer, one for the parts of the embedding, one where the logits meet. A round with a draft is a
            # second forward, and so are the labels that go on from a question.
            forwards = 2 if program["name"].startswith(("chat_speculate", "chat_score")) else 1
            assert program["all_reduces"] <= (forwards * (2 * layers + 2) if found["chips"] > 1 else 0)
    assert found["decode_floor"]["tokens_per_s_in_all"] == pytest.approx(slots / found["decode_floor"]["seconds"])
    return found


@needs_libtpu
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "topology", "slots"), [("gemma-3-1b", "v5e:1x1", 1), ("llama-3.1-8b", "v5e:2x2", 2)])
def test_two_layers_compile_for_a_tpu(name: str, topology: str, slots: int, tmp_path: Path) -> None:
    """Whole models are compiled with drafts too."""
    check(tmp_path, name, topology, layers=2, slots=slots, context=256, speculation="never")


@needs_libtpu
@pytest.mark.tpu
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("topology", ["v5e:1x1", "v5e:2x2", "v6e:1x1"])
@pytest.mark.parametrize("name", LAYERS)
def test_whole_models_compile_for_a_tpu(name: str, topology: str, tmp_path: Path) -> None:
    """Llama 3.1 8B has 15 GiB of weights in bfloat16: more than one v5e chip can take beside anything else."""
    if (name, topology) == ("llama-3.1-8b", "v5e:1x1"):
        result = plan(tmp_path, name, LAYERS[name], "--topology", topology, "--slots", "8", "--context", "1024")
        assert result.returncode == 1
        assert "v5e:2x2" in result.stderr
    else:
        check(tmp_path, name, topology, LAYERS[name], slots=8, context=1024)


def test_a_model_that_can_not_run_is_refused_before_anything_is_compiled(tmp_path: Path) -> None:
    result = plan(tmp_path, "llama-3.2-1b", 1, "--topology", "cpu:1", "--context", "200000")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: context = 200000: this model has 131072 positions\n"
