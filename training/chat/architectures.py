"""The two chat models: configurations of transformers' own Gemma 3 and Llama classes, a few million parameters each."""

from dataclasses import dataclass

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from .tokenizer import GEMMA, LLAMA, ChatFormat

HIDDEN, LAYERS, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, CONTEXT, WINDOW = 256, 5, 512, 4, 2, 64, 2048, 64
SLIDING, FULL = "sliding_attention", "full_attention"
SHAPE = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "intermediate_size": INTERMEDIATE,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A model to train: its folder's name, its chat format, and how to build it for a tokenizer.

    `embedding_scale`: how much larger than usual the embeddings are stored.
    """

    name: str
    title: str
    chat_format: ChatFormat
    embedding_scale: float = 1.0

    def build(self, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
        """A model with fresh weights in float32; the caller seeds torch."""
        ids = {
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        }
        ends = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(self.chat_format.end_of_turn)]
        if self.name == "chat-gemma":
            config = Gemma3TextConfig(
                vocab_size=len(tokenizer),
                **SHAPE,
                **ids,
                sliding_window=WINDOW,
                layer_types=[SLIDING, FULL, SLIDING, FULL, FULL],
                query_pre_attn_scalar=HEAD_DIM,
                rope_parameters={
                    FULL: {"rope_type": "default", "rope_theta": 100_000.0},
                    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
                },
            )
            model = Gemma3ForCausalLM(config)
        else:
            # Gemma multiplies its embeddings by sqrt(hidden size), so that a token's identity is not hidden by what
            # the layers add. Llama has no such factor: the embeddings start larger and the last norm smaller instead.
            config = LlamaConfig(
                vocab_size=len(tokenizer),
                **SHAPE,
                **ids,
                rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
                rms_norm_eps=1e-5,
                initializer_range=0.04,
            )
            model = LlamaForCausalLM(config)
            torch.nn.init.normal_(model.model.embed_tokens.weight, std=0.02 * self.embedding_scale)
            torch.nn.init.constant_(model.model.norm.weight, 1 / self.embedding_scale)
        model.generation_config = GenerationConfig(
            **(ids | {"eos_token_id": ends}), do_sample=True, temperature=0.7, top_p=0.95, top_k=0
        )
        return model


ARCHITECTURES = (
    Architecture(name="chat-gemma", title="Gemma 3", chat_format=GEMMA),
    Architecture(name="chat-llama", title="Llama 3", chat_format=LLAMA, embedding_scale=HIDDEN**0.5),
)
