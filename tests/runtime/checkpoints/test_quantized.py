"""fp8 and mxfp4 checkpoints are read as bfloat16; others are refused, with the name of their original."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime.checkpoints.empty_model import empty_model
from hfjax_app.runtime.checkpoints.safetensors_reader import read

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 128,
}
BLOCK = (16, 32)


def saved(folder: Path, tensors: dict[str, torch.Tensor], config: Any, quantization: dict[str, Any]) -> None:
    config.save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": quantization}))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def in_fp8(weight: torch.Tensor, block: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A matrix in fp8, the scale of each block, and the matrix that they stand for."""
    down, across = block
    padded = torch.nn.functional.pad(weight.float(), (0, -weight.shape[1] % across, 0, -weight.shape[0] % down))
    blocks = padded.unflatten(1, (-1, across)).unflatten(0, (-1, down))  # [rows, down, columns, across]
    scale = blocks.abs().amax((1, 3), keepdim=True).clamp(min=1e-6) / 448
    values = (blocks / scale).to(torch.float8_e4m3fn)
    whole = (values.float() * scale).flatten(2).flatten(0, 1)[: weight.shape[0], : weight.shape[1]]
    packed = values.float().flatten(2).flatten(0, 1)[: weight.shape[0], : weight.shape[1]].to(torch.float8_e4m3fn)
    return packed, scale[:, 0, :, 0], whole.bfloat16()


@pytest.mark.parametrize(("model_type", "block"), [("llama", BLOCK), ("llama", None), ("qwen3_moe", BLOCK)])
def test_fp8_with_a_scale_for_each_block(model_type: str, block: tuple[int, int] | None, tmp_path: Path) -> None:
    """DeepSeek-V3's form, also of experts, which transformers stacks; a block at the edge may be cut (72 rows)."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 72, "head_dim": 16}
    config = AutoConfig.for_model(model_type, **SIZES | {"intermediate_size": 72}, **experts)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(tmp_path / "whole")
    tensors, expected = load_file(tmp_path / "whole" / "model.safetensors"), {}
    for name, tensor in list(tensors.items()):
        if tensor.ndim == 2 and "proj" in name:
            size = (tensor.shape[0], tensor.shape[1]) if block is None else block
            tensors[name], tensors[name + "_scale_inv"], expected[name] = in_fp8(tensor, size)
    assert len(expected) > 8
    saved(tmp_path, tensors, config, {"quant_method": "fp8", "weight_block_size": block})
    save_file(
        {name: expected.get(name, tensor) for name, tensor in tensors.items() if not name.endswith("_inv")},
        tmp_path / "whole" / "model.safetensors",
    )
    whole = read(empty_model(AutoModelForCausalLM, tmp_path / "whole", torch.float32), tmp_path / "whole")
    weights = read(empty_model(AutoModelForCausalLM, tmp_path, torch.float32), tmp_path)
    assert weights.keys() == whole.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(weights[name], array, err_msg=name)


def test_mxfp4_experts(tmp_path: Path) -> None:
    """gpt-oss' form: blocks of 16 bytes and an exponent for each."""
    sizes = SIZES | {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 16, "num_key_value_heads": 2}
    config = AutoConfig.for_model("gpt_oss", **sizes)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(tmp_path / "whole")
    tensors, expected = load_file(tmp_path / "whole" / "model.safetensors"), {}
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
        scales = torch.randint(120, 130, (experts, outputs, inputs // 32), dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        expected[name] = convert_moe_packed_tensors(blocks, scales)
    assert len(expected) == 4
    saved(tmp_path, tensors, config, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    weights = read(empty_model(AutoModelForCausalLM, tmp_path, torch.float32), tmp_path)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(weights[name], tensor.float(), err_msg=name)


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "compressed-tensors"])
@pytest.mark.parametrize(
    "card", ["---\nbase_model: owner/whole-7b\n---\n", "---\nbase_model:\n- owner/whole-7b\n---\n", ""]
)
def test_others_are_refused_by_name(method: str, card: str, tmp_path: Path) -> None:
    saved(tmp_path, {}, AutoConfig.for_model("llama", **SIZES), {"quant_method": method})
    if card:
        (tmp_path / "README.md").write_text(card)
    named = "its unquantised original, owner/whole-7b" if card else "its unquantised original$"
    with pytest.raises(ModelUnavailable, match=rf"is quantised \({method}\): take {named}"):
        empty_model(AutoModelForCausalLM, tmp_path)
