"""What every rung of the chat part is given: a model, a prompt, and how many tokens to make."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from hfjax_app.chat.text.chat_template import ChatFormat
from hfjax_app.chat.text.tokenizer import load_tokenizer
from hfjax_app.chat.torch_reference import compare, reference
from hfjax_app.errors import ModelUnavailable, first_line
from hfjax_app.runtime.checkpoints.hub import fetch
from hfjax_app.runtime.dtype_policy import default_dtype

QUESTION = "Tell me a short story about a fox."
_MOST_PROMPT = 512

Run = Callable[[], Iterator[int]]


@dataclass(frozen=True, kw_only=True)
class ChatTask:
    """Make `tokens` tokens after `prompt`, greedily, with the model of `source`.

    Args:
        source: a folder or a hub id.
        prompt: token ids.
        tokens: how many to make.
        dtype: of the weights.
    """

    source: str
    prompt: tuple[int, ...]
    tokens: int
    dtype: torch.dtype

    @classmethod
    def of(cls, source: str, tokens: int) -> "ChatTask":
        """The task of a chat model: the answer to QUESTION.

        Raises:
            ModelUnavailable: there is no such model, or no tokenizer.
        """
        tokenizer = load_tokenizer(source, _MOST_PROMPT)
        prompt = tuple(ChatFormat(tokenizer).encode([{"role": "user", "content": QUESTION}]))
        return cls(source=source, prompt=prompt, tokens=tokens, dtype=default_dtype())

    @property
    def length(self) -> int:
        """Positions of a cache that holds all of it."""
        return len(self.prompt) + self.tokens

    def agrees(self, answer: Sequence[int]) -> bool:
        """Whether PyTorch in float32 on the CPU would have chosen these tokens, or others by no more than rounding."""
        model = reference(self.source, "none")
        return compare(model, [self.prompt], [answer], dtype=self.dtype).holds

    def load(self) -> PreTrainedModel:
        """transformers' own model with its weights, on the CPU.

        Raises:
            ModelUnavailable: it can't be loaded.
        """
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(
                fetch(self.source), dtype=self.dtype, use_safetensors=True, trust_remote_code=False
            )
        except ModelUnavailable:
            raise
        except Exception as error:
            raise ModelUnavailable(f"model {os.fspath(self.source)!r} can't be loaded: {first_line(error)}") from error
        loaded: PreTrainedModel = model.eval()
        return loaded
