"""The plan command on configs of real models: every program through the TPU's compiler, without weights or a TPU.

Two layers of each model in `make test`; whole models, minutes each, in `make test-tpu`.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from transformers import Gemma3TextConfig, LlamaConfig

from hfjax_app.chat.model.model_runner import DRAFT_TOKENS, PREFILL_CHUNK
from tests.chat.conftest import make_tokenizer

ROOT = Path(__file__).parents[2]
GIB = 1 << 30
LAYERS = {"gemma-3-1b": 26, "llama-3.2-1b": 16, "llama-3.1-8b": 32}

needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")


def config_of(name: str, layers: int) -> Any:
    """Shapes as published in each model's config.json."""
    if name.startswith("gemma"):
        large = name == "gemma-3-4b"
        return Gemma3TextConfig(
            hidden_size=2560 if large else 1152,
            intermediate_size=10240 if large else 6912,
            num_hidden_layers=layers,
            num_attention_heads=8 if large else 4,
            num_key_value_heads=4 if large else 1,
            head_dim=256,
            vocab_size=262208 if large else 262144,
            sliding_window=1024 if large else 512,
            # every sixth layer of the model has full attention; here one of two
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


# jax's own setting: the compiler optimises less, and takes a quarter less time.
HASTY = {"JAX_EXEC_TIME_OPTIMIZATION_EFFORT": "-1.0"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One plan: a model, its number of layers, the chips, the slots and the context."""

    name: str
    topology: str
    layers: int
    slots: int
    context: int

    def arguments(self, folder: Path) -> list[str]:
        """The command's arguments, with the model in a new folder."""
        config_of(self.name, self.layers).save_pretrained(folder)
        make_tokenizer().save_pretrained(folder)
        size = ["--slots", str(self.slots), "--context", str(self.context)]
        return ["plan", "--json", "--chat-model", str(folder), "--topology", self.topology, *size]


def planned(folder: Path, *cases: Case, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command's output, a line for each case, from one process in which libtpu can be loaded."""
    commands = [case.arguments(folder / str(number)) for number, case in enumerate(cases)]
    script = f"import sys\nfrom hfjax_app.__main__ import main\nsys.exit(max([main(one) for one in {commands!r}]))"
    command = [sys.executable, "-c", script]
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True)


def copied(leaves: list[list[int | None]], count: int, rows: int, slots: int, context: int) -> int:
    """Bytes of the positions that a decode program of a bucket copies; 0 if it uses the whole cache.

    Args:
        leaves: bytes of a position of a slot, and the largest number of positions; None: the context.
        count, rows: slots and positions of the bucket.
        slots, context: of the cache.
    """
    if (count, rows) == (slots, context):
        return 0
    return count * sum(size * min(rows, most or context) for size, most in leaves)


def check(case: Case, found: dict[str, Any]) -> None:
    need, programs = found["chat"]["need"], found["chat"]["programs"]
    config = config_of(case.name, case.layers)
    largest = config.vocab_size * config.hidden_size * 2 // found["chips"]
    assert found["fits"] is True
    assert {program["name"].partition("_")[0] for program in programs} == {"chat"}
    assert "chat_score" in {program["name"] for program in programs}
    assert any(p["name"].startswith("chat_speculate") for p in programs)
    for program in programs:
        of_slots = program["name"] != "chat_score"
        if of_slots:
            assert program["in_place"] >= need["cache"], "the cache is copied instead of reused"
        if program["name"].startswith(("chat_prefill", "chat_decode", "chat_speculate", "chat_score")):
            # A constant of the program is no argument of it.
            assert program["arguments"] >= need["weights"] + of_slots * need["cache"]
            assert program["constant"] <= 1 << 20
            # No weights of a layer are copied, transposed or converted before their use. A draft's logits are converted
            # after the all-reduce; for Gemma's vocabulary they are larger than a chip's part of such weights.
            logits = (DRAFT_TOKENS + 1) * config.vocab_size * 4 if "speculate" in program["name"] else 0
            layer = config.hidden_size * config.intermediate_size * 2 // found["chips"]
            assert program["moved"] < layer or program["moved"] == logits
            # The output layer's weights, gathered from all chips, would be temporary memory. The programs for labels
            # have their own caches.
            assert program["temporary"] < largest // 2 + (program["in_place"] if of_slots else largest // 2)
            if bucket := re.fullmatch(r"chat_decode_(\d+)x(\d+)", program["name"]):
                rows = copied(need["slot"]["rows"], *map(int, bucket.groups()), case.slots, case.context)
                assert program["temporary"] < rows + GIB // 10
            if case.topology.endswith("1x1"):
                scored = PREFILL_CHUNK * config.vocab_size * 4 if program["name"] == "chat_score_prompt" else 0
                assert program["temporary"] < need["weights"] // 8 + scored
            # Two per layer, one for the parts of the embedding, one for the logits. A round with a draft has a second
            # forward, and so do the labels after a question.
            forwards = 2 if program["name"].startswith(("chat_speculate", "chat_score")) else 1
            assert program["all_reduces"] <= (forwards * (2 * case.layers + 2) if found["chips"] > 1 else 0)
    assert found["decode_floor"]["tokens_per_s_in_all"] == pytest.approx(case.slots / found["decode_floor"]["seconds"])


@needs_libtpu
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("name", "topology", "slots"),
    [("gemma-3-1b", "v5e:1x1", 1), ("llama-3.1-8b", "v5e:2x2", 2)],
)
@pytest.mark.slow
def test_two_layers_compile_for_a_tpu(name: str, topology: str, slots: int, tmp_path: Path) -> None:
    """On one chip and on four. Whole models are also compiled with drafts."""
    case = Case(name=name, topology=topology, slots=slots, layers=2, context=256)
    result = planned(tmp_path, case, **HASTY)
    assert result.returncode == 0, result.stderr
    check(case, json.loads(result.stdout))


@needs_libtpu
@pytest.mark.tpu
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("topology", ["v5e:1x1", "v5e:2x2", "v6e:1x1"])
@pytest.mark.parametrize("name", LAYERS)
def test_whole_models_compile_for_a_tpu(name: str, topology: str, tmp_path: Path) -> None:
    """Llama 3.1 8B has 15 GiB of weights in bfloat16, which leaves no room for a cache on one v5e chip."""
    case = Case(name=name, topology=topology, layers=LAYERS[name], slots=8, context=1024)
    result = planned(tmp_path, case)
    if (name, topology) == ("llama-3.1-8b", "v5e:1x1"):
        assert result.returncode == 1
        assert "v5e:2x2" in result.stderr
    else:
        assert result.returncode == 0, result.stderr
        check(case, json.loads(result.stdout))
