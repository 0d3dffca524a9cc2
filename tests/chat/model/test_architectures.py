"""Every decoder architecture: greedy tokens through the engine equal torch's `generate`; others are refused.

Models are tiny, with random weights. Windows are 32 tokens where the architecture has them, so that a prompt of 75
tokens fills a ring more than once. `make test-all` runs all of them.
"""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from hfjax_app.chat import ChatEngine, EngineOptions, SamplingParams
from hfjax_app.errors import ModelUnavailable

SIZES = {"vocab_size": 128, "pad_token_id": 0, "eos_token_id": None, "bos_token_id": None}
SIZES |= {"tie_word_embeddings": False}  # tied random weights only repeat the last token
USUAL = SIZES | {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
GPT2 = SIZES | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
STATES = SIZES | {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
HEAD = USUAL | {"head_dim": 8}
ONE_LAYER = {"num_hidden_layers": 1}
ENDS = {"bos_token_id": 1, "eos_token_id": 1}  # for configs that require numbers; the test removes them

ALL_SLIDING = {"sliding_window": 32}
SLIDING = ALL_SLIDING | {"layer_types": ["sliding_attention", "full_attention"]}
LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
CONVOLUTION = {"layer_types": ["conv", "full_attention"]}
LATENT = USUAL | {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
GROUPS = {"n_group": 1, "topk_group": 1}
ROUTED = GROUPS | {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
DENSE_FIRST = ROUTED | {"first_k_dense_replace": 1}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
MAMBA = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
}
PER_LAYER = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 32,
    "vocab_size_per_layer_input": 128,
    "hidden_size_per_layer_input": 8,
}

# What `make test` runs: every mechanism at least once, in one layer where all are alike. Llama and Gemma 3 are what the
# engine's own tests run; Falcon Mamba, Gemma 2 and gpt-oss are what `test_bf16_weights.py` runs.
USUAL_ONES = {
    "bloom": SIZES | {"n_head": 4, "n_layer": 1, "hidden_size": 32},
    "deepseek_v3": LATENT | DENSE_FIRST | {"n_group": 2},
    "gpt2": GPT2 | {"n_layer": 1},
    "lfm2": USUAL | CONVOLUTION,
    "llama4_text": HEAD
    | {
        "attention_chunk_size": 32,
        "layer_types": ["chunked_attention", "full_attention"],
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 2,
        "intermediate_size_mlp": 48,
    },
    "mistral": HEAD | ALL_SLIDING | ONE_LAYER,
    "opt": USUAL | ONE_LAYER | {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "qwen3_next": HEAD | EXPERTS | LINEAR | DELTA | {"shared_expert_intermediate_size": 16},
}
SLOW_ONES = {
    "afmoe": HEAD | SLIDING | EXPERTS | GROUPS | {"num_dense_layers": 1},
    "apertus": USUAL,
    "arcee": USUAL,
    "aria_text": USUAL | {"moe_num_experts": 4, "moe_topk": 2},
    "bamba": USUAL | MAMBA | {"attn_layer_indices": [1]},
    "bert": USUAL | {"is_decoder": True},
    "biogpt": USUAL,
    "bitnet": USUAL,
    "codegen": GPT2 | {"rotary_dim": 4},
    "cohere": USUAL,
    "cohere2": HEAD | SLIDING,
    "cohere2_moe": HEAD | SLIDING | EXPERTS,
    "ctrl": GPT2 | {"dff": 48},
    "cwm": HEAD | SLIDING | ENDS,
    "deepseek_v2": LATENT | DENSE_FIRST,
    "diffllama": USUAL,
    "doge": USUAL,
    "dots1": HEAD | DENSE_FIRST,
    "ernie4_5": HEAD,
    "ernie4_5_moe": USUAL
    | {
        "moe_intermediate_size": 16,
        "moe_num_experts": 4,
        "moe_k": 2,
        "moe_num_shared_experts": 1,
        "moe_layer_start_index": 1,
    },
    "exaone4": HEAD | SLIDING,
    "exaone_moe": HEAD | SLIDING | EXPERTS | GROUPS | {"num_shared_experts": 1},
    "falcon": USUAL | {"num_kv_heads": 2, "new_decoder_architecture": True, "ffn_hidden_size": 48},
    "falcon_mamba": STATES,
    "falcon_h1": HEAD | MAMBA | {"mamba_d_head": 8, "mamba_d_ssm": 32},
    "flex_olmo": USUAL | EXPERTS,
    "gemma": HEAD,
    "gemma2": HEAD | SLIDING | {"query_pre_attn_scalar": 8},
    "gemma3_text": HEAD | SLIDING | {"query_pre_attn_scalar": 8},
    "gemma3n_text": HEAD
    | PER_LAYER
    | {"laurel_rank": 4, "altup_num_inputs": 2, "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0]},
    "gemma4_text": HEAD | PER_LAYER,
    "glm": HEAD,
    "glm4": HEAD,
    "glm4_moe": HEAD | DENSE_FIRST,
    "glm4_moe_lite": LATENT | ROUTED,
    "gpt_bigcode": GPT2,
    "gpt_neox": USUAL,
    "gpt_oss": HEAD | SLIDING | LOCAL_EXPERTS,
    "gpt_neox_japanese": USUAL,
    "gptj": GPT2 | {"rotary_dim": 4},
    "granite": USUAL,
    "granite_swa": USUAL | SLIDING,
    "granitemoe": USUAL | LOCAL_EXPERTS,
    "granitemoe_swa": USUAL | LOCAL_EXPERTS | SLIDING,
    "granitemoehybrid": USUAL | LOCAL_EXPERTS | LINEAR | MAMBA | {"shared_intermediate_size": 16},
    "granitemoeshared": USUAL | LOCAL_EXPERTS | {"shared_intermediate_size": 16},
    "helium": HEAD,
    "hunyuan_v1_dense": HEAD,
    "hunyuan_v1_moe": HEAD | {"num_experts": 4, "moe_topk": [2, 2]},
    "hy_v3": HEAD | EXPERTS | GROUPS | {"num_shared_experts": 1, "first_k_dense_replace": 1},
    "hyperclovax": USUAL,
    "jais2": USUAL,
    "jamba": USUAL
    | {
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
    },
    "kimi_linear": LATENT | EXPERTS | LINEAR | {"head_dim": 8},
    "laguna": HEAD | EXPERTS,
    "lfm2_moe": USUAL | CONVOLUTION | EXPERTS | {"num_dense_layers": 1},
    "llama": USUAL,
    "mamba": STATES,
    "mamba2": STATES | {"num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 16},
    "mellum": HEAD | SLIDING | EXPERTS,
    "mimo_v2_flash": HEAD | SLIDING | EXPERTS,
    "minicpm3": LATENT,
    "minimax_m2": HEAD | LOCAL_EXPERTS | {"rotary_dim": 4},
    "ministral": HEAD | SLIDING,
    "ministral3": HEAD | ALL_SLIDING,
    "mixtral": HEAD | LOCAL_EXPERTS,
    "modernbert-decoder": USUAL | SLIDING | {"local_attention": 32, "cls_token_id": 1, "sep_token_id": 1} | ENDS,
    "mpt": SIZES | {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 256},
    "nanochat": HEAD,
    "nemotron": HEAD,
    "nemotron_h": HEAD
    | ROUTED
    | {
        "num_hidden_layers": 3,
        "layers_block_type": ["mamba", "attention", "moe"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "ssm_state_size": 8,
        "n_groups": 1,
        "chunk_size": 16,
        "moe_shared_expert_intermediate_size": 16,
    },
    "olmo": USUAL,
    "olmo2": USUAL,
    "olmo3": USUAL | SLIDING,
    "olmo_hybrid": USUAL | LINEAR | DELTA,
    "olmoe": USUAL | EXPERTS,
    "persimmon": USUAL | {"partial_rotary_factor": 0.5},
    "phi": USUAL,
    "phi3": USUAL | ALL_SLIDING,
    "phimoe": USUAL | LOCAL_EXPERTS,
    "qwen2": USUAL,
    "qwen2_moe": USUAL | EXPERTS | {"shared_expert_intermediate_size": 16},
    "qwen3": HEAD,
    "qwen3_5_moe_text": HEAD | EXPERTS | LINEAR | DELTA | {"shared_expert_intermediate_size": 16},
    "qwen3_5_text": HEAD | LINEAR | DELTA,
    "qwen3_moe": HEAD | EXPERTS,
    "seed_oss": HEAD,
    "smollm3": USUAL,
    "solar_open": HEAD | ROUTED,
    "stablelm": USUAL,
    "starcoder2": USUAL | ALL_SLIDING,
    "vaultgemma": HEAD | SLIDING | {"query_pre_attn_scalar": 8},
    "xglm": USUAL | {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48},
    "youtu": LATENT,
    "zamba2": USUAL
    | {
        "num_hidden_layers": 3,
        "layers_block_type": ["mamba", "hybrid", "mamba"],
        "num_key_value_heads": 4,
        "mamba_d_state": 8,
        "mamba_ngroups": 1,
        "n_mamba_heads": 4,
        "mamba_headdim": 16,
        "adapter_rank": 4,
        "chunk_size": 16,
        "attention_head_dim": 16,
    },
}
CONFIGS = USUAL_ONES | SLOW_ONES
PARAMETERS = [*USUAL_ONES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_ONES)]


def make_model(architecture: str) -> PreTrainedModel:
    """Normal weights of std 0.15, added to vectors that start as ones or zeros, so that tokens are diverse."""
    config = AutoConfig.for_model(architecture, **CONFIGS[architecture])
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = model.config.eos_token_id = None
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter) * 0.15
            parameter.copy_(noise if parameter.ndim > 1 else parameter + noise)
    return model


@pytest.mark.parametrize("architecture", PARAMETERS)
def test_greedy_equals_generate(architecture: str) -> None:
    """Prompts of 3, 20 and 75 tokens at once, in chunks of 32."""
    model = make_model(architecture)
    prompts = [np.random.default_rng(length).integers(3, 128, length).tolist() for length in (3, 20, 75)]
    expected = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=10, do_sample=False)
        expected.append(out[0, len(prompt) :].tolist())
    assert len({token for tokens in expected for token in tokens}) >= 5
    engine = ChatEngine(
        model, options=EngineOptions(slots=3, context=128, prefill_chunk=32, decode_chunk=5, buckets=())
    ).start()
    got = engine.generate(prompts, SamplingParams(max_tokens=10, temperature=0.0))
    engine.stop()
    assert got == expected


@pytest.mark.parametrize(
    ("architecture", "options", "says"),
    [
        ("gpt_neo", {}, "GPTNeoForCausalLM can't run on the static cache: its local attention"),
        (
            "mllama",
            {"text_config": {"num_hidden_layers": 2, "cross_attention_layers": [1]}},
            "it reads pictures by cross attention",
        ),
        ("deepseek_v32", LATENT | DENSE_FIRST, r"its attention takes indices \(modeling_deepseek_v32.py, line"),
        ("inkling_text", HEAD, r"its attention takes position_bias \(modeling_inkling.py, line"),
        ("jetmoe", USUAL | {"kv_channels": 8}, r"its code depends on the values of tensors \(modeling_jetmoe.py, line"),
        ("minimax", HEAD, "MiniMax uses cache of its own"),
        ("rwkv", SIZES | {"hidden_size": 32, "num_hidden_layers": 2}, "it keeps nothing in transformers' cache"),
        ("t5", {}, "is a t5, which transformers has no AutoModelForCausalLM for"),
    ],
)
def test_an_architecture_that_cannot_run_is_refused_in_one_line(
    architecture: str, options: dict, says: str, tmp_path: Path
) -> None:
    """By its config, the only file: the error is not about a missing tokenizer or missing weights."""
    AutoConfig.for_model(architecture, **options).save_pretrained(tmp_path)
    with pytest.raises(ModelUnavailable, match=says) as refusal:
        ChatEngine.from_pretrained(tmp_path, context=128)
    assert "\n" not in str(refusal.value)


def test_a_missing_operator_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error names the operator that has no lowering; the test replaces one by such an operator."""
    monkeypatch.setattr(torch.nn.functional, "silu", lambda x, inplace=False: torch.special.airy_ai(x))
    AutoConfig.for_model("llama", **USUAL).save_pretrained(tmp_path)
    with pytest.raises(ModelUnavailable, match="airy_ai has no lowering"):
        ChatEngine.from_pretrained(tmp_path, context=128)


def test_the_docs_list_the_tested_architectures() -> None:
    """The table of architectures has exactly the names that this file's parametrisation has."""
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
    table = page.split("\n| Kind | Tested |\n")[1].split("\n\n")[0]
    rows = [line.split("|") for line in table.splitlines() if "`" in line]
    assert sorted(name for row in rows for name in re.findall(r"`([\w-]+)`", row[2])) == sorted(CONFIGS)
