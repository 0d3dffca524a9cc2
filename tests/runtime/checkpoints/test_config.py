"""Configurations as people upload them: what training scripts leave there is no reason to refuse a model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime.checkpoints.empty_model import _LazyZeros, empty_model, read_config, saved_dtype

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 512,
}


def written(folder: Path, **settings: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(LLAMA | settings))
    return folder


@pytest.mark.parametrize(
    "left",
    [
        {"_attn_implementation": "flash_attention_2"},
        {"attn_implementation": "flash_attention_3", "_attn_implementation_autoset": True},
        {"attn_implementation": "kernels-community/vllm-flash-attn3"},
        {"_experts_implementation": "grouped_mm"},
        {"use_return_dict": False, "return_dict": False, "torchscript": True, "output_attentions": True},
        {"output_hidden_states": True},
        {"rms_norm_eps": None, "hidden_act": None, "tie_word_embeddings": None, "attention_bias": None},
        {"max_position_embeddings": 2048.0, "head_dim": 16.0, "rms_norm_eps": 1},
        {"sub_configs": {}, "get_text_config": 1, "unsloth_version": "2025.1", "auto_map": {"AutoConfig": "a.B"}},
        {"quantization_config": None, "rope_scaling": None, "pad_token_id": None},
    ],
    ids=lambda left: next(iter(left)),
)
def test_what_training_scripts_leave(left: dict[str, Any], tmp_path: Path) -> None:
    model = empty_model(AutoModelForCausalLM, written(tmp_path, **left))
    assert model.config._attn_implementation in ("sdpa", "eager")
    assert not model.config.output_attentions
    assert model.config.return_dict


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ({"torch_dtype": "float16", "dtype": "bfloat16"}, torch.bfloat16),
        ({"torch_dtype": "torch.float16"}, torch.float16),
        ({"torch_dtype": "auto"}, None),
        ({"torch_dtype": None}, None),
    ],
)
def test_names_of_dtypes(dtypes: dict[str, Any], expected: torch.dtype | None, tmp_path: Path) -> None:
    assert saved_dtype(written(tmp_path, **dtypes)) == expected


@pytest.mark.parametrize(("padding", "expected"), [(512, None), (-1, None), (3, 3)])
def test_a_pad_token_outside_of_the_vocabulary_does_not_count(
    padding: int, expected: int | None, tmp_path: Path
) -> None:
    """The embedding could not be made with it."""
    assert empty_model(AutoModelForCausalLM, written(tmp_path, pad_token_id=padding)).config.pad_token_id == expected


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"model_type": "no_such"}, "no_such"),
        ({"vocab_size": [1]}, "vocab_size"),
    ],
)
def test_what_is_wrong_is_said(settings: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=says):
        empty_model(AutoModelForCausalLM, written(tmp_path, **settings))


def test_an_ordinary_configuration_is_read_where_it_is(tmp_path: Path) -> None:
    assert read_config(written(tmp_path)).name_or_path == str(tmp_path)
    assert read_config(written(tmp_path, attn_implementation="sdpa")).name_or_path == str(tmp_path)


def test_a_read_only_property_may_be_an_old_name_that_transformers_reads(tmp_path: Path) -> None:
    """Nemotron's layers stand in `hybrid_override_pattern`; without it the model had four layers of 52."""
    settings = {"model_type": "nemotron_h", "hybrid_override_pattern": "MEM*EM", "num_hidden_layers": 6}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    config = read_config(tmp_path)
    assert config.num_hidden_layers == len(config.layers_block_type) == 6


def test_a_type_that_transformers_does_not_know_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"is a nobody, which this transformers does not know; docs/models.md"):
        empty_model(AutoModelForCausalLM, written(tmp_path, model_type="nobody"))


def test_zeros_of_large_experts_touch_no_memory(tmp_path: Path) -> None:
    """Llama 4 Scout's experts are made of zeros, 2.7 GB a layer; a plan took 70 seconds to write them."""
    with _LazyZeros():
        zeros = torch.zeros(2, 3), torch.zeros((4,)), torch.zeros(0, 3), torch.zeros(1 << 20, 1 << 12)
    assert [tuple(each.shape) for each in zeros] == [(2, 3), (4,), (0, 3), (1 << 20, 1 << 12)]
    assert all(not each.any() for each in zeros[:3])
    assert zeros[0].add_(1).sum() == 6
