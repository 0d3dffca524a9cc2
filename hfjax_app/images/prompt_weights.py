"""Weights of words in a prompt, as web UIs write them: "(word:1.3)".

A weight scales how far the word's embedding is from that of an empty prompt, by compel. Only models whose text encoders
are all CLIP's read weights; for others they are text. Does not run text encoders: `prompt_conditioning.py` does.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hfjax_app.errors import RequestRejected
from hfjax_app.limits import IMAGE_MAX_LOW_WEIGHTS

HIGHEST = 2.0  # a greater number is text, such as the ratio in "(16:9)"
_WEIGHTED = re.compile(r"(?<!\\)\(((?:[^()\\]|\\.)+):\s*(\d*\.?\d+)\s*\)")

Forward = Callable[[torch.Tensor], Any]  # token ids [1, length] -> the text encoder's output


@dataclass(frozen=True, kw_only=True)
class Fragment:
    """A part of a prompt and its weight, 0 to HIGHEST; 1 is as usual."""

    text: str
    weight: float = 1.0


def fragments(prompt: str) -> list[Fragment]:
    """The parts of a prompt; a prompt without weights is one."""
    found: list[Fragment] = []
    end = 0
    for match in _WEIGHTED.finditer(prompt):
        if (weight := float(match[2])) > HIGHEST:
            continue
        found += [Fragment(text=prompt[end : match.start()]), Fragment(text=match[1], weight=weight)]
        end = match.end()
    if not found:
        return [Fragment(text=prompt)]
    shown = [Fragment(text=re.sub(r"\\([()])", r"\1", each.text), weight=each.weight) for each in found]
    return [each for each in [*shown, Fragment(text=prompt[end:])] if each.text]


def check_weights(prompt: str) -> None:
    """Refuse a prompt that runs the text encoder too often: each weight below 1 costs a run.

    Raises:
        RequestRejected: there are more than IMAGE_MAX_LOW_WEIGHTS of them.
    """
    low = sum(each.weight < 1 for each in fragments(prompt))
    if low > IMAGE_MAX_LOW_WEIGHTS:
        raise RequestRejected(f"{low} weights below 1 in a prompt: at most {IMAGE_MAX_LOW_WEIGHTS}")


def plain(prompt: str) -> str:
    """A prompt without its weights."""
    return "".join(each.text for each in fragments(prompt))


def has_weights(prompt: str) -> bool:
    return any(each.weight != 1 for each in fragments(prompt))


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
