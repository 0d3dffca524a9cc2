"""A Llama's weights as a GGUF file, so that llama.cpp runs the same model."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import LlamaForCausalLM

_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TOP = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
_TYPES = {
    "F32": gguf.GGMLQuantizationType.F32,
    "BF16": gguf.GGMLQuantizationType.BF16,
    "Q8_0": gguf.GGMLQuantizationType.Q8_0,
}


def write(model: LlamaForCausalLM, path: Path, precision: str, tokenizer: Any = None) -> Path:
    """Write matrices in F32, BF16 or Q8_0 and vectors in F32; an existing file is kept.

    Args:
        model: its weights are written.
        path: of the file.
        precision: of the matrices.
        tokenizer: a byte-level BPE of transformers with at most as many tokens as the model; None: the file has none.
    """
    if path.exists():
        return path
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if tokenizer is None:
        writer.add_tokenizer_model("no_vocab")
    else:
        _write_tokenizer(writer, tokenizer, config.vocab_size)
    for name, tensor in model.named_parameters():
        array = _rotated(name, tensor.detach(), model).to(torch.float32).numpy()
        if array.ndim > 1:
            writer.add_tensor(_name(name), gguf.quantize(array, _TYPES[precision]), raw_dtype=_TYPES[precision])
        else:
            writer.add_tensor(_name(name), array.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_tokenizer(writer: gguf.GGUFWriter, tokenizer: Any, vocabulary: int) -> None:
    """The tokens and merges; the model's other ids are unused tokens, the last of which ends answers."""
    bpe = json.loads(tokenizer.backend_tokenizer.to_str())
    added = {token["id"]: token["content"] for token in bpe["added_tokens"]}
    named = {id_: text for text, id_ in bpe["model"]["vocab"].items()} | added
    kinds = [
        gguf.TokenType.CONTROL if id_ in added else gguf.TokenType.NORMAL if id_ in named else gguf.TokenType.UNUSED
        for id_ in range(vocabulary)
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([named.get(id_, f"[unused {id_}]") for id_ in range(vocabulary)])
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) if isinstance(pair, list) else pair for pair in bpe["model"]["merges"]])
    writer.add_eos_token_id(vocabulary - 1)
    writer.add_add_bos_token(False)


def _name(name: str) -> str:
    if name in _TOP:
        return _TOP[name]
    if name == "lm_head.weight":
        return "output.weight"
    _, _, layer, *module, _ = name.split(".")
    return f"blk.{layer}.{_LAYER['.'.join(module)]}.weight"


def _rotated(name: str, tensor: torch.Tensor, model: LlamaForCausalLM) -> torch.Tensor:
    """The rows in llama.cpp's order: it rotates neighbouring pairs of a head, transformers the two halves."""
    for projection, heads in (
        ("q_proj", model.config.num_attention_heads),
        ("k_proj", model.config.num_key_value_heads),
    ):
        if projection in name:
            return tensor.view(heads, 2, -1, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)
    return tensor
