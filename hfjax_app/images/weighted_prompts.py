"""Embeddings of prompts with weights of words, by compel: how far a word's is from that of an empty prompt is scaled.

Does not find weights (`prompt_weights.py`) and does not run text encoders (`prompt_conditioning.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from hfjax_app.images.prompt_weights import fragments, plain

Forward = Callable[[torch.Tensor], Any]  # token ids [1, length] -> the text encoder's output


class WeightedPrompts:
    """Embeddings of prompts with weights, for the pipeline classes that take embeddings.

    Args:
        encoders: the tokenizer and the forward of each text encoder, all of them CLIP's.
        pooled: whether the class also takes pooled embeddings, as Stable Diffusion XL: then the embeddings are those
            before the last layer, of all encoders side by side.
    """

    def __init__(self, encoders: Sequence[tuple[Any, Forward]], *, pooled: bool):
        from compel.embeddings_provider import DownweightMode, EmbeddingsProvider, ReturnedEmbeddingsType

        kinds = ReturnedEmbeddingsType
        self._pooled = pooled
        self._forwards = [forward for _, forward in encoders]
        self._providers = [
            EmbeddingsProvider(
                tokenizer,
                _Encoder(forward),
                # By masks an encoder would need another program.
                downweight_mode=DownweightMode.REMOVE,
                returned_embeddings_type=(
                    kinds.PENULTIMATE_HIDDEN_STATES_NON_NORMALIZED if pooled else kinds.LAST_HIDDEN_STATES_NORMALIZED
                ),
            )
            for tokenizer, forward in encoders
        ]

    def embeddings(self, prompt: str) -> Mapping[str, torch.Tensor]:
        """The pipeline's arguments for a prompt: "prompt_embeds" [1, length, width], and "pooled_prompt_embeds"."""
        parts = fragments(prompt)
        texts, weights = [[each.text for each in parts]], [[each.weight for each in parts]]
        made = [provider.get_embeddings_for_weighted_prompt_fragments(texts, weights) for provider in self._providers]
        found = {"prompt_embeds": torch.cat(made, dim=-1)}
        if self._pooled:  # of the whole text: a pooled embedding has no words
            [ids] = self._providers[-1].get_token_ids([plain(prompt)], padding="max_length", truncation_override=True)
            found["pooled_prompt_embeds"] = self._forwards[-1](torch.tensor([ids]))[0]
        return found


class _Encoder:
    """What compel calls: token ids -> an output, without a mask, which would need another program."""

    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self, forward: Forward):
        self._forward = forward

    def __call__(self, ids: torch.Tensor, *_: Any, **__: Any) -> Any:
        return self._forward(ids)
