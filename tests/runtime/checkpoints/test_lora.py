"""LoRA adapters: merged while the base is read, with the weights of peft's `merge_and_unload`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from hfjax_app.chat import ChatEngine, SamplingParams
from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime.checkpoints.empty_model import empty_model
from hfjax_app.runtime.checkpoints.lora import base_and_adapter
from hfjax_app.runtime.checkpoints.safetensors_reader import read
from tests.chat.conftest import SMALL, make_tokenizer

pytestmark = [  # peft's
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers` to `True`:UserWarning"),
]

LLAMA = LlamaConfig(num_hidden_layers=2, tie_word_embeddings=True, **SMALL)
UNTIED = LlamaConfig(num_hidden_layers=2, **SMALL)
GPT2 = GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=512, bos_token_id=None, eos_token_id=None)
OPTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (LLAMA, {"r": 4, "lora_alpha": 8}),
    "by layer": (
        LLAMA,
        {"target_modules": "all-linear", "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.1.mlp.up_proj": 1}},
    ),
    "rank-stabilised": (LLAMA, {"r": 4, "use_rslora": True}),
    "embedding": (UNTIED, {"target_modules": ["embed_tokens", "v_proj"]}),
    "whole": (LLAMA, {"target_modules": ["q_proj"], "modules_to_save": ["norm"]}),
    "transposed": (GPT2, {"target_modules": ["c_attn"], "fan_in_fan_out": True}),
}


def adapted(config: Any, options: dict[str, Any], folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """A base and an adapter in folders of their own; returns peft's merged model."""
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    base.save_pretrained(folder / "base")
    base.name_or_path = str(folder / "base")
    model = get_peft_model(base, LoraConfig(**options))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.normal_(0, 0.1) if "lora" in name else parameter.add_(0.5)
    model.save_pretrained(folder / "adapter")
    return model.merge_and_unload()


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_the_weights_are_those_of_peft(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    merged = adapted(*OPTIONS[name], tmp_path, dtype)
    base, adapter = base_and_adapter(tmp_path / "adapter")
    weights = read(empty_model(AutoModelForCausalLM, base, torch.float32), base, adapter=adapter)
    for key, parameter in merged.named_parameters():
        np.testing.assert_allclose(weights[key], parameter.detach().float(), rtol=1e-6, atol=1e-7, err_msg=key)


def test_an_adapter_of_a_multimodal_model_changes_its_text_part(tmp_path: Path) -> None:
    merged = adapted(*OPTIONS["plain"], tmp_path)
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    save_file(
        {key.replace(".model.layers.", ".model.language_model.layers."): t for key, t in load_file(path).items()}, path
    )
    base, adapter = base_and_adapter(tmp_path / "adapter")
    weights = read(empty_model(AutoModelForCausalLM, base, torch.float32), base, adapter=adapter)
    for key, parameter in merged.named_parameters():
        np.testing.assert_allclose(weights[key], parameter.detach().float(), rtol=1e-6, atol=1e-7, err_msg=key)


def test_an_adapter_chats(tmp_path: Path) -> None:
    """With its base's tokenizer, or its own."""
    merged = adapted(*OPTIONS["plain"], tmp_path)
    make_tokenizer().save_pretrained(tmp_path / "base")
    expected = merged.generate(torch.tensor([[7, 8, 9]]), do_sample=False, max_new_tokens=8)[0, 3:].tolist()
    options = {"slots": 1, "context": 128, "prefill_chunk": 16, "buckets": [1], "speculation": "never"}
    engine = ChatEngine.from_pretrained(tmp_path / "adapter", end_tokens=(), **options).start()
    try:
        assert engine.generate([[7, 8, 9]], SamplingParams(max_tokens=8, temperature=0.0)) == [expected]
    finally:
        engine.stop()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"peft_type": "IA3"}, "adapter of the kind IA3 for"),
        ({"peft_type": "PROMPT_TUNING"}, "PROMPT_TUNING"),
        ({"use_dora": True}, "a LoRA adapter with use_dora"),
        (
            {"base_model_name_or_path": "somebody/some-base-7b"},
            r"is an adapter, which needs its base .* 'somebody/some-b",
        ),
        ({"base_model_name_or_path": None}, "is an adapter, which needs its base .*: it names none"),
    ],
)
def test_other_adapters_are_refused_by_name(settings: dict[str, Any], says: str, tmp_path: Path) -> None:
    adapted(*OPTIONS["plain"], tmp_path)
    path = tmp_path / "adapter" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    with pytest.raises(ModelUnavailable, match=says):
        base_and_adapter(tmp_path / "adapter")


def test_an_adapter_of_another_base(tmp_path: Path) -> None:
    adapted(*OPTIONS["plain"], tmp_path)
    other = LlamaConfig(**{**LLAMA.to_dict(), "num_hidden_layers": 1})
    AutoModelForCausalLM.from_config(other).save_pretrained(tmp_path / "base")
    base, adapter = base_and_adapter(tmp_path / "adapter")
    with pytest.raises(ModelUnavailable, match=r"changes model\.layers\.1\.\S+, which '.*' does not have"):
        read(empty_model(AutoModelForCausalLM, base), base, adapter=adapter)
