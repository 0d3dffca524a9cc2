"""Multimodal checkpoints: their text part chats with the tokens of the whole model, and nothing else is read."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from hfjax_app.chat import ChatEngine, SamplingParams
from hfjax_app.runtime.checkpoints.empty_model import empty_model
from hfjax_app.runtime.checkpoints.safetensors_reader import read
from hfjax_app.runtime.checkpoints.text_part import own_names
from tests.chat.conftest import SMALL, make_tokenizer

TEXT = SMALL | {"num_hidden_layers": 2, "max_position_embeddings": 256, "tie_word_embeddings": False}
MROPE = {"rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}}
VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
QWEN = {"depth": 1, "hidden_size": 32, "num_heads": 2, "out_hidden_size": 64, "intermediate_size": 32}
MODELS: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {"text_config": TEXT | MROPE, "vision_config": QWEN | {"fullatt_block_indexes": [0]}},
    "qwen3_vl": {"text_config": TEXT | MROPE, "vision_config": QWEN | {"deepstack_visual_indexes": [0]}},
    "mistral3": {"text_config": TEXT | {"model_type": "mistral"}, "vision_config": VISION | {"model_type": "pixtral"}},
    "llava": {
        "text_config": TEXT | {"model_type": "llama"},
        "vision_config": VISION | {"model_type": "clip_vision_model"},
    },
    "lfm2_vl": {
        "text_config": TEXT | {"model_type": "lfm2", "layer_types": ["conv", "full_attention"]},
        "vision_config": VISION | {"model_type": "siglip2_vision_model"},
    },
    "gemma3": {
        "text_config": TEXT | {"model_type": "gemma3_text", "sliding_window": 32},
        "vision_config": VISION | {"model_type": "siglip_vision_model", "image_size": 28, "patch_size": 14},
        "mm_tokens_per_image": 4,
    },
    "smolvlm": {
        "text_config": TEXT | {"model_type": "llama"},
        "vision_config": VISION | {"model_type": "smolvlm_vision", "image_size": 28, "patch_size": 14},
    },
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def compiled_quickly(quick_compiler: None) -> None:
    """These tests check results, not speed."""


def checkpoint(name: str, folder: Path) -> Any:
    """A whole model of random weights, saved as transformers does, with a tokenizer."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **MODELS[name], tie_word_embeddings=False)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.15)
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return model


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in MODELS if name not in ("qwen2_5_vl", "mistral3")]


@pytest.mark.parametrize("name", ["qwen2_5_vl", "mistral3", *SLOW])
def test_the_text_part_gives_the_tokens_of_the_whole_model(name: str, tmp_path: Path) -> None:
    model = checkpoint(name, tmp_path)
    prompt = torch.randint(5, 400, (1, 40))
    made = model.generate(prompt, do_sample=False, max_new_tokens=12, eos_token_id=None)[0, 40:].tolist()
    options = {"slots": 1, "context": 128, "prefill_chunk": 16, "buckets": [1], "speculation": "never"}
    engine = ChatEngine.from_pretrained(tmp_path, end_tokens=(), **options).start()
    try:
        assert engine.generate([prompt[0].tolist()], SamplingParams(max_tokens=12, temperature=0.0)) == [made]
        assert not any("vis" in weight for weight in engine.runner.weights)
    finally:
        engine.stop()


def test_a_part_that_needs_a_missing_package_is_not_built(tmp_path: Path) -> None:
    """Gemma 3n sees by timm. Names are those of its repository; the text part's are below `model.language_model`."""
    text = {"model_type": "gemma3n_text", "vocab_size_per_layer_input": 512, "hidden_size_per_layer_input": 8}
    text |= {
        "num_kv_shared_layers": 0,
        "laurel_rank": 4,
        "altup_num_inputs": 2,
        "activation_sparsity_pattern": [0.0, 0.0],
    }
    config = AutoConfig.for_model("gemma3n", text_config=TEXT | text | {"tie_word_embeddings": True})
    config.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_config(config.get_text_config(decoder=True))
    model.save_pretrained(tmp_path / "text")
    tensors = load_file(tmp_path / "text" / "model.safetensors")
    renamed = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    vision = {"model.vision_tower.timm_model.blocks.0.norm.weight": torch.zeros(3)}
    save_file(renamed | vision, tmp_path / "model.safetensors")
    empty = empty_model(AutoModelForCausalLM, tmp_path, torch.float32)
    assert type(empty).__name__ == "Gemma3nForCausalLM"
    weights = read(empty, tmp_path)
    assert {name for name, _ in model.named_parameters()} <= weights.keys()


def test_names_of_a_text_part() -> None:
    """A vision tower has layers too, but no embedding of tokens."""
    known = ["model.embed.weight", "model.layers.0.q.weight", "model.layers.1.q.weight", "lm_head.weight"]
    keys = [f"text.{name}" for name in known] + [f"eyes.model.layers.{layer}.q.weight" for layer in range(9)][:2]
    assert dict(own_names(keys, known, "model")) == {f"text.{name}": name for name in known}


def test_settings_of_the_whole_reach_the_text_part(tmp_path: Path) -> None:
    config = AutoConfig.for_model("mistral3", **MODELS["mistral3"], tie_word_embeddings=True, eos_token_id=7)
    config.save_pretrained(tmp_path)
    model = empty_model(AutoModelForCausalLM, tmp_path)
    assert (model.config.eos_token_id, model.config.tie_word_embeddings) == (7, True)
    assert model.config.text_part_of == "mistral3"
