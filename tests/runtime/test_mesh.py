"""Which weights of published architectures are split over devices; the tests need no devices."""

import pytest
import torch
from jax.sharding import AbstractMesh, PartitionSpec
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GptOssConfig,
    Llama4TextConfig,
    LlamaConfig,
    MixtralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3MoeConfig,
)

from hfjax_app.runtime.mesh import AXIS, TensorParallel, split

ROWS, COLUMNS, WHOLE = PartitionSpec(AXIS), PartitionSpec(None, AXIS), PartitionSpec()


def specs(config: object, devices: int) -> dict[str, PartitionSpec]:
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    place = TensorParallel(AbstractMesh((devices,), (AXIS,)), model)
    return {name: place(name, tuple(p.shape)).spec for name, p in model.named_parameters(remove_duplicate=False)}


LLAMA = LlamaConfig(
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=1,
    num_attention_heads=16,
    num_key_value_heads=4,
    vocab_size=1000,
    attention_bias=True,
)


@pytest.mark.parametrize(("devices", "kv"), [(2, ROWS), (4, ROWS), (8, WHOLE)])
def test_llama(devices: int, kv: PartitionSpec) -> None:
    """First projections by outputs, second ones by inputs; four key-value heads can't be split over eight devices."""
    found = specs(LLAMA, devices)
    layer = "model.layers.0."
    assert found[layer + "self_attn.q_proj.weight"] == found[layer + "self_attn.q_proj.bias"] == ROWS
    for name in ("k_proj.weight", "k_proj.bias", "v_proj.weight"):
        assert found[f"{layer}self_attn.{name}"] == kv, name
    assert found[layer + "self_attn.o_proj.weight"] == found[layer + "mlp.down_proj.weight"] == COLUMNS
    assert found[layer + "self_attn.o_proj.bias"] == WHOLE
    assert found[layer + "mlp.gate_proj.weight"] == found[layer + "mlp.up_proj.weight"] == ROWS
    assert found["model.embed_tokens.weight"] == found["lm_head.weight"] == ROWS
    assert found["model.norm.weight"] == found[layer + "input_layernorm.weight"] == WHOLE


def test_heads_are_never_split() -> None:
    """Gemma 3 1B has four query heads and one key-value head: eight devices split its MLP only."""
    config = Gemma3TextConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=64,
        vocab_size=1001,
    )
    found = specs(config, 8)
    assert {name.split(".")[4] for name, spec in found.items() if spec != WHOLE} == {
        "gate_proj",
        "up_proj",
        "down_proj",
    }


EXPERTS = {"num_experts": 16, "num_local_experts": 16, "hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 1000}


@pytest.mark.parametrize("kind", [Qwen3MoeConfig, GptOssConfig, Llama4TextConfig])
def test_each_device_holds_whole_experts(kind: type[PreTrainedConfig]) -> None:
    """Their biases too. gpt-oss has no plan for tensors: its attention's names are the usual ones."""
    found = specs(kind(**EXPERTS, head_dim=8, num_attention_heads=8, num_key_value_heads=8), 8)
    experts = {name: spec for name, spec in found.items() if ".experts." in name}
    assert set(experts.values()) == {ROWS}
    assert {name.rpartition(".")[2] for name in experts} >= {"gate_up_proj", "down_proj"}
    assert found["model.layers.0.self_attn.q_proj.weight"] == ROWS
    assert found["model.layers.0.self_attn.o_proj.weight"] == COLUMNS


def test_experts_that_devices_do_not_divide_are_split_as_the_plan_says() -> None:
    six = EXPERTS | {"num_experts": 6, "num_local_experts": 6}
    found = specs(MixtralConfig(**six, intermediate_size=64, num_attention_heads=8), 4)
    layer = "model.layers.0.mlp.experts."
    assert (found[f"{layer}gate_up_proj"], found[f"{layer}down_proj"]) == (COLUMNS, PartitionSpec(None, None, AXIS))


def test_an_architecture_without_a_plan_is_replicated_except_its_vocabulary() -> None:
    found = specs(GPT2Config(n_embd=64, n_layer=1, n_head=4, vocab_size=1000), 4)
    assert {name for name, spec in found.items() if spec != WHOLE} == {"transformer.wte.weight", "lm_head.weight"}


def test_an_axis_that_devices_do_not_divide_is_replicated() -> None:
    mesh = AbstractMesh((4,), (AXIS,))
    assert split(mesh, (2, 8, 3), 1).spec == COLUMNS
    assert split(mesh, (2, 6, 3), 1).spec == WHOLE
    assert split(mesh, (8,), 1).spec == WHOLE
