"""Checkpoints with few programs and random weights: they load, compile and answer soon."""

from pathlib import Path

import torch
from transformers import DistilBertConfig, LlamaConfig, LlamaForCausalLM

from tests.chat.conftest import SMALL, make_tokenizer
from tests.sentiment import conftest as sentiment


def save_chat(folder: Path) -> Path:
    """One layer; weights of std 0.15, so that greedy tokens are diverse."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, **SMALL))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.15)
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def save_classifier(folder: Path) -> Path:
    """For texts of 16 tokens: three programs."""
    config = DistilBertConfig.from_dict(sentiment.CONFIG.to_dict() | {"max_position_embeddings": 16})
    return sentiment.save(folder, config=config)
