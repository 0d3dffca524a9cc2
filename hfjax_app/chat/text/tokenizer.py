"""The tokenizer of a chat model, with the chat template of the checkpoint wherever it stands, and the
tokens that end an answer, from all places where a checkpoint may name them.

`runtime/checkpoints/tokenizer_files.py` finds its files.
"""

import json
import math
import os
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedModel

from hfjax_app.chat.text.chat_template import ChatFormat
from hfjax_app.chat.text.template import Template
from hfjax_app.errors import ModelUnavailable, RequestRejected
from hfjax_app.runtime.checkpoints.hub import fetch
from hfjax_app.runtime.checkpoints.tokenizer_files import NoTokenizer, load

# Files of processors, which AutoTokenizer does not read.
_PROCESSOR_FILES = ("chat_template.json", "processor_config.json", "preprocessor_config.json")


_ROOM = 64  # tokens of a short message and its answer
_SHARE = 4 / 3  # of the context to the longest prompt, see `PromptMaker`


def load_tokenizer(source: str | os.PathLike[str], context: int, *, base: str | os.PathLike[str] | None = None) -> Any:
    """A checkpoint's tokenizer, its chat template tried out.

    Args:
        source: a folder or a hub id.
        context: tokens of prompt and answer together.
        base: another source, for a source without a tokenizer.

    Raises:
        NoTokenizer: there is none.
        ModelUnavailable: one line with the model, the reason, and the remedy.
    """
    name = os.fspath(source)
    try:
        tokenizer = load(AutoTokenizer.from_pretrained, source)
    except NoTokenizer:
        if base is None or base == source:
            raise
        tokenizer = load(AutoTokenizer.from_pretrained, base)
    if tokenizer.chat_template is None:
        tokenizer.chat_template = _of_processor(fetch(source, weights=False))
    try:
        shortest = len(ChatFormat(tokenizer).encode([{"role": "user", "content": "Hi"}]))
    except (ModelUnavailable, RequestRejected) as error:
        raise ModelUnavailable(f"model {name!r}: {error}") from error
    if shortest * _SHARE > context:
        enough = -(-math.ceil(shortest * _SHARE + _ROOM) // 64) * 64
        raise ModelUnavailable(
            f"model {name!r}: what its chat template says by itself takes {shortest} tokens of a context of {context}: "
            f"serve it with context = {enough} or more"
        )
    return tokenizer


def _of_processor(folder: Path) -> str | None:
    """The chat template in the files of a processor."""
    for file in _PROCESSOR_FILES:
        try:
            settings = json.loads((folder / file).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(settings, dict) and isinstance(template := settings.get("chat_template"), str):
            return template
    return None


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
