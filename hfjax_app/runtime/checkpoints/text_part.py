"""The text part of a multimodal checkpoint as a causal language model of its own.

What reads pictures or sound is neither built nor read. Text parts without a class for causal language models get one:
transformers' text model and an output layer, as in the class with eyes.
"""

import copy
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from typing import Any

import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMultimodalLM, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from hfjax_app.runtime.seams.transformers import class_of, has_class

# Fields of configurations whose classes change the logits after the output layer.
_CHANGES_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "output_multiplier")
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def text_part(config: Any) -> Any:
    """The configuration of a multimodal checkpoint's text part; None for others.

    Args:
        config: of transformers. That of the text part has the other's type as `text_part_of`.
    """
    if not has_class(AutoModelForMultimodalLM, config):
        return None
    text = config.get_text_config(decoder=True)
    encodes = getattr(text, "is_encoder_decoder", False) or getattr(config, "is_encoder_decoder", False)
    if type(text) is type(config) or encodes or causal_lm_class(text) is None:
        return None
    text = copy.deepcopy(text)
    text.tie_word_embeddings = getattr(config, "tie_word_embeddings", getattr(text, "tie_word_embeddings", False))
    text.dtype = text.dtype or config.dtype
    text.text_part_of = config.model_type
    for name in _TOKENS:
        if getattr(text, name, None) is None:
            setattr(text, name, getattr(config, name, None))
    return text


def causal_lm_class(config: Any) -> type[PreTrainedModel] | None:
    """The class of a causal language model with this configuration; None if there is none."""
    found: type[PreTrainedModel] | None = class_of(AutoModelForCausalLM, config)
    if found is not None:
        return found
    changed = any(getattr(config, name, None) is not None for name in _CHANGES_LOGITS)
    text_class = None if changed else class_of(AutoModel, config)
    return None if text_class is None else _with_output_layer(text_class)


@cache
def _with_output_layer(text_class: Any) -> type[PreTrainedModel]:
    family: Any = text_class.__mro__[1]

    class TextPart(family, GenerationMixin):
        config_class = text_class.config_class
        base_model_prefix = "model"
        _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012  # as transformers has it

        def __init__(self, config: Any):
            super().__init__(config)
            self.model = text_class(config)
            self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            self.post_init()

        def forward(
            self,
            input_ids: torch.Tensor | None = None,
            attention_mask: torch.Tensor | None = None,
            position_ids: torch.Tensor | None = None,
            past_key_values: Any = None,
            use_cache: bool | None = None,
            logits_to_keep: int | torch.Tensor = 0,
            **options: Any,
        ) -> CausalLMOutputWithPast:
            made = self.model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                past_key_values=past_key_values,
                use_cache=use_cache,
                **options,
            )
            keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits = self.lm_head(made.last_hidden_state[:, keep, :])
            return CausalLMOutputWithPast(logits=logits, past_key_values=made.past_key_values)

    TextPart.__name__ = TextPart.__qualname__ = text_class.__name__.removesuffix("Model") + "ForCausalLM"
    TextPart.__module__ = text_class.__module__  # where its code is, which tells what it can do
    return TextPart


def own_names(keys: Iterable[str], known: Collection[str], base: str) -> Iterator[tuple[str, str]]:
    """The keys of a checkpoint with those of its text part named as in a checkpoint of the text part alone.

    Args:
        keys: of the checkpoint.
        known: names of the text part's parameters.
        base: its base model's name, such as "model".

    Returns:
        Pairs of a key and its name. Keys outside of the text part are left out.
    """
    keys = list(keys)
    inner = [name.removeprefix(f"{base}.") for name in known if name.startswith(f"{base}.")]
    outer = [name for name in known if not name.startswith(f"{base}.")]
    prefix = _most_common_prefix(keys, inner)
    heads = {key: name for name in outer if (key := _nearest(keys, name, prefix)) is not None}
    for key in keys:
        if key in heads:
            yield key, heads[key]
        elif prefix is not None and key.startswith(prefix):
            yield key, f"{base}.{key.removeprefix(prefix)}"


def _most_common_prefix(keys: Collection[str], names: Collection[str]) -> str | None:
    """What stands before most of these names in the keys: a vision tower shares some of them only."""
    wanted, found = set(names), Counter[str]()
    for key in keys:
        parts = key.split(".")
        for at in range(len(parts)):
            if ".".join(parts[at:]) in wanted:
                found[".".join([*parts[:at], ""]) if at else ""] += 1
    return max(found, key=lambda prefix: (found[prefix], -len(prefix))) if found else None


def _nearest(keys: Iterable[str], name: str, prefix: str | None) -> str | None:
    """The key of a parameter outside of the base model: the one with the shortest path."""
    inside = re.compile(re.escape(prefix)) if prefix else None
    ends = [key for key in keys if (key == name or key.endswith(f".{name}")) and not (inside and inside.match(key))]
    return min(ends, key=len, default=None)
