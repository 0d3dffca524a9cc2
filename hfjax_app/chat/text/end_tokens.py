"""The tokens that end an answer, from all places where a checkpoint may name them."""

from typing import Any

from transformers import PreTrainedModel

from hfjax_app.chat.text.template import Template


def end_tokens(model: PreTrainedModel, tokenizer: Any = None) -> tuple[int, ...]:
    """The ids that end an answer: those of generation_config, the config, the tokenizer and its chat template.

    A fine-tune often names its own end in one of them and leaves its base's in the others.

    Args:
        model: its configs are read.
        tokenizer: None: only the configs count.
    """
    text_config = model.config.get_text_config(decoder=True)
    named = [config.eos_token_id for config in (model.generation_config, model.config, text_config) if _has_end(config)]
    found = {id_ for ids in named for id_ in (ids if isinstance(ids, list | tuple) else [ids])}
    if tokenizer is not None:
        found |= _of_tokenizer(tokenizer)
    return tuple(sorted(id_ for id_ in found if isinstance(id_, int) and 0 <= id_ < text_config.vocab_size))


def _has_end(config: Any) -> bool:
    return getattr(config, "eos_token_id", None) is not None


def _of_tokenizer(tokenizer: Any) -> set[int]:
    """The tokenizer's own end token, and the one with which its template ends an answer."""
    known = {str(token): id_ for id_, token in tokenizer.added_tokens_decoder.items()}
    own = tokenizer.eos_token_id
    ends = set() if own is None or (own == tokenizer.unk_token_id and own != known.get(tokenizer.eos_token)) else {own}
    if tokenizer.chat_template is not None:
        for ending in map(str.lstrip, Template(tokenizer).answer_endings()):
            if texts := [text for text in known if text.strip() and ending.startswith(text)]:
                return ends | {known[max(texts, key=len)]}
    return ends
