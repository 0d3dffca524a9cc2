"""Texts as rows of token ids, cut to the model's limit and padded to the shapes of its programs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from tokenizers import Encoding, Tokenizer
from transformers import PreTrainedModel

from hfjax_app.errors import ModelUnavailable, RequestRejected
from hfjax_app.runtime.operators import QUERY_BLOCK
from hfjax_app.runtime.seams.transformers import attention_of

LENGTHS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
USUAL = 512  # tokens that most classifiers read, and those without a number of positions
_SCORES_BYTES = 2 << 30  # of a layer's attention; longer texts are cut
_SCORE_BYTES = 8  # a score and its exponential
_NO_TOKEN = -1  # where no token stands for padding


@dataclass(frozen=True, kw_only=True)
class TokenIds:
    """A text's token ids, and whether it was longer than the model reads."""

    ids: list[int]
    cut: bool


@dataclass(frozen=True, kw_only=True)
class TokenSpans:
    """A text's token ids with the characters that each token stands for; None for special tokens."""

    ids: list[int]
    spans: list[tuple[int, int] | None]


class Lengths:
    """How many tokens of a text a model reads, and the lengths of its programs.

    Args:
        model: the limit is its number of positions, or what the scores of its attention leave of _SCORES_BYTES.
        most: another limit, the tokenizer's.

    Attributes:
        token_limit: special tokens included.
        lengths: in ascending order; the last one is the limit.
    """

    def __init__(self, model: PreTrainedModel, most: int = LENGTHS[-1]):
        self.token_limit = min(most, _positions(model), _affordable(model))
        self.lengths = [length for length in LENGTHS if length < self.token_limit] + [self.token_limit]

    def fitting(self, tokens: int) -> int:
        """The shortest program length that holds this many tokens."""
        return next(length for length in self.lengths if length >= tokens)


class Encoder(Lengths):
    """A model's tokenizer. Thread-safe.

    The tokenizer is copied to one of the `tokenizers` library that is not changed afterwards. transformers' own call
    sets truncation each time, which two threads must not do at once, and takes several times as long.

    Args:
        tokenizer: its padding token and side are ignored; see `padding_id`.
        model: reads the tokens; its positions limit their number.

    Raises:
        ModelUnavailable: the tokenizer is not a fast one.

    Attributes:
        blank: a token of the vocabulary that says nothing, for the baseline of explanations.
        pads_left: whether padding stands before a text; for models that read the last position.
    """

    def __init__(self, tokenizer: Any, model: PreTrainedModel):
        if not tokenizer.is_fast:
            raise ModelUnavailable(
                f"{type(tokenizer).__name__} is a slow tokenizer; one with a tokenizer.json is needed"
            )
        says_nothing = (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.eos_token_id, 0)
        self.pads_left = False
        self._padding = padding_id(model)
        self.blank: int = next(token for token in says_nothing if token is not None)
        super().__init__(model, tokenizer.model_max_length)
        self._whole = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._whole.no_padding()
        self._whole.no_truncation()
        self._cutting = Tokenizer.from_str(self._whole.to_str())
        self._cutting.enable_truncation(self.token_limit, direction=tokenizer.truncation_side)

    @cached_property
    def _cutting_first(self) -> Tokenizer:
        """Of pairs, whose first text is cut."""
        tokenizer = Tokenizer.from_str(self._whole.to_str())
        tokenizer.enable_truncation(self.token_limit, strategy="only_first")
        return tokenizer

    def count(self, text: str) -> int:
        """The number of tokens of the whole text, special tokens included."""
        return len(self._whole.encode(text).ids)

    def encode(self, texts: list[str]) -> list[TokenIds]:
        """Each text's tokens, at most `token_limit`, special tokens included."""
        return _token_ids(self._cutting.encode_batch_fast(texts))

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[TokenIds]:
        """Each pair's tokens, at most `token_limit`: of the first text of a pair as many as fit.

        Raises:
            RequestRejected: a second text alone is longer.
        """
        try:
            encodings = self._cutting_first.encode_batch_fast(list(pairs))
        except Exception as error:  # of tokenizers, which has no class for it
            raise RequestRejected(
                f"a label is longer than the {self.token_limit} tokens that the model reads"
            ) from error
        return _token_ids(encodings)

    def trace(self, text: str) -> TokenSpans:
        """The text's tokens, at most `token_limit`, with their places in it."""
        encoding = self._cutting.encode(text)
        marks = zip(encoding.offsets, encoding.special_tokens_mask, strict=True)
        return TokenSpans(ids=encoding.ids, spans=[None if special else span for span, special in marks])

    def padded(self, rows: Sequence[Sequence[int]], batch: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids and mask, int32 [batch, length]. A row that is only padding has an unmasked token, so that its softmax is
        finite."""
        ids = np.full((batch, length), self._padding, np.int32)
        mask = np.zeros((batch, length), np.int32)
        for number in range(batch):
            row = rows[number] if number < len(rows) else [self.blank]
            place = self.place(len(row), length)
            ids[number, place], mask[number, place] = row, 1
        return ids, mask

    def place(self, tokens: int, length: int) -> slice:
        """Where the tokens of a text stand in a row."""
        return slice(length - tokens, length) if self.pads_left else slice(0, tokens)


def _token_ids(encodings: Sequence[Encoding]) -> list[TokenIds]:
    return [TokenIds(ids=encoding.ids, cut=bool(encoding.overflowing)) for encoding in encodings]


def _positions(model: PreTrainedModel) -> int:
    """How many tokens the model has positions for. RoBERTa and its relatives count positions from after the padding's.

    A config without a number, or with -1 as XLNet's, has no limit: then it is USUAL.
    """
    positions: int = getattr(model.config, "max_position_embeddings", None) or 0
    if positions <= 0:
        return USUAL
    words = input_embeddings(model)
    for module in model.modules():
        if not isinstance(module, torch.nn.Embedding) or module is words:
            continue
        if module.num_embeddings == positions and module.padding_idx is not None:
            return positions - module.padding_idx - 1
    return positions


def _affordable(model: PreTrainedModel) -> int:
    """The longest of LENGTHS whose scores fit: of all pairs of tokens, or of a block's queries and all keys."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None) or 1
    at_once = QUERY_BLOCK if attention_of(model) == "sdpa" else LENGTHS[-1]
    return max(
        length
        for length in LENGTHS
        if length <= USUAL or heads * min(length, at_once) * length * _SCORE_BYTES <= _SCORES_BYTES
    )


def padding_id(model: PreTrainedModel) -> int:
    """The id at padding, by which a classifier is to tell it from a text.

    The padding token of the model's config, since torch passes over it also where a text ends with it, such as an end
    token. Where the config names none, torch passes over no token, and padding is no token: the tokenizer's padding
    token may be one that texts have.
    """
    config = model.config.get_text_config()
    token = config.pad_token_id
    return token if isinstance(token, int) and 0 <= token < config.vocab_size else _NO_TOKEN


def input_embeddings(model: PreTrainedModel) -> torch.nn.Module | None:
    """The module that embeds a model's tokens; None where it has none, such as one that hashes characters."""
    try:
        return model.get_input_embeddings()
    except NotImplementedError:
        return None
