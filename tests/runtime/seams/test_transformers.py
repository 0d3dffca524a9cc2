"""transformers' private parts are there, and what is changed is still needed."""

import inspect
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    CLIPTextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedConfig,
)
from transformers.cache_utils import LinearAttentionLayer, StaticLayer
from transformers.modeling_utils import local_torch_dtype
from transformers.models.gemma3 import modeling_gemma3

from hfjax_app.runtime import experts
from hfjax_app.runtime.seams import transformers as seam
from tests.runtime.seams.checks import ROOT, Checks

check = Checks(seam)


@check("attention of a model")
def _attention(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=0, hidden_size=8, vocab_size=8, num_attention_heads=1))
    assert seam.attention_of(model) == "sdpa"
    model.set_attn_implementation("eager")
    assert seam.attention_of(model) == "eager"
    monkeypatch.delattr(PreTrainedConfig, "_attn_implementation")
    assert seam.attention_of(model) == ""


@check("sets in order")
def _sets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "for layer_type in set(self.config.layer_types)" in inspect.getsource(modeling_gemma3)
    script = (
        "from hfjax_app.runtime.seams.transformers import OrderedSet\n"
        "kinds = ['full_attention', 'sliding_attention', 'linear_attention']\n"
        "print(*set(kinds)), print(*OrderedSet(kinds))"
    )
    plain, ordered = set(), set()
    for seed in "1234":
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT.parent)}
        output = subprocess.check_output([sys.executable, "-c", script], env=environment, text=True)
        first, second = output.splitlines()
        plain.add(first), ordered.add(second)
    assert len(plain) > 1
    assert len(ordered) == 1


@check("buffers computed again")
def _marks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    )
    rotary = model.model.rotary_emb
    rotary.inv_freq.zero_()
    model.initialize_weights()
    assert not rotary.inv_freq.any(), "it was marked, and left out"
    rotary._is_hf_initialized = False
    model.initialize_weights()
    assert rotary.inv_freq.any()


@check("one model at a time")
def _dtype(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "local_torch_dtype" in inspect.getsource(LlamaForCausalLM._from_config)
    seen: list[torch.dtype] = []
    with local_torch_dtype(torch.bfloat16):
        thread = threading.Thread(target=lambda: seen.append(torch.get_default_dtype()))
        thread.start()
        thread.join()
    assert seen == [torch.bfloat16]


TINY = LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)


@check("classes of configurations")
def _classes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert seam.class_of(AutoModelForCausalLM, TINY) is LlamaForCausalLM
    assert not seam.has_class(AutoModelForCausalLM, CLIPTextConfig())
    assert seam.class_of(AutoModelForCausalLM, CLIPTextConfig()) is None


@check("models without weights")
def _built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with torch.device("meta"):
        model = seam.built(LlamaForCausalLM, TINY, dtype=torch.bfloat16)
    assert {(parameter.dtype, parameter.device.type) for parameter in model.parameters()} == {(torch.bfloat16, "meta")}


@check("kept in float32")
def _float32(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Careful(LlamaForCausalLM):
        _keep_in_fp32_modules_strict = frozenset({"down_proj"})

    pattern = seam.kept_in_float32(Careful(TINY), torch.bfloat16)
    assert pattern is not None
    assert pattern.search("model.layers.0.mlp.down_proj.weight")
    assert not pattern.search("model.layers.0.mlp.up_proj.weight")
    assert seam.kept_in_float32(LlamaForCausalLM(TINY), torch.bfloat16) is None


@check("names in checkpoints")
def _renamed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = MixtralConfig(**{**TINY.to_dict(), "num_local_experts": 2, "model_type": "mixtral"})
    with torch.device("meta"):
        model = MixtralForCausalLM(config)
    old = [f"model.layers.0.block_sparse_moe.experts.{i}.w1.weight" for i in range(2)]
    found = seam.renamed(model, [(key, key) for key in old], model.state_dict())
    assert [(key, name) for key, name, *_ in found] == [(key, "model.layers.0.mlp.experts.gate_up_proj") for key in old]
    assert all(hasattr(converter, "convert") and pattern for *_, converter, pattern in found)


@check("experts")
def _experts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    assert experts.NAME in ALL_EXPERTS_FUNCTIONS
    config = MixtralConfig(**{**TINY.to_dict(), "num_local_experts": 2, "model_type": "mixtral"})
    found = [*filter(seam.holds_experts, MixtralForCausalLM(config).modules())]
    assert [type(module).__name__ for module in found] == ["MixtralExperts"]
    assert seam.gate_of(found[0])(torch.ones(3, 16)).shape == (3, 8)


@check("registries in code")
def _registries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert seam.mentions(LlamaForCausalLM, "ALL_ATTENTION_FUNCTIONS")
    assert not seam.mentions(LlamaForCausalLM, "no such registry")


@check("cache layers")
def _layers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    attention = vars(StaticLayer(max_cache_len=4))
    assert {"keys", "values", "is_initialized", "max_cache_len", "cumulative_length"} <= {*attention}
    recurrent = vars(LinearAttentionLayer(number_of_states=1))
    states = {"conv_states", "conv_kernel_size", "recurrent_states", "has_previous_state"}
    assert states | {"is_conv_states_initialized", "is_recurrent_states_initialized"} <= {*recurrent}


test_it_is_there_and_still_needed = check.test()
