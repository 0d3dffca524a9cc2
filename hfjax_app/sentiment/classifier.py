"""A text classifier of transformers, unmodified, compiled ahead of time for a handful of padded shapes.

Takes any checkpoint of AutoModelForSequenceClassification that reads `input_ids` and `attention_mask`. Does not shard:
a classifier fits one device.
"""

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from hfjax_app.errors import ModelUnavailable, RequestRejected
from hfjax_app.runtime.module import pure_function, weights_of
from hfjax_app.runtime.process import prepare
from hfjax_app.runtime.programs import ProgramReport, Programs
from hfjax_app.runtime.weights import load, load_model
from hfjax_app.text import checked_text

MAX_CHARACTERS = 10_000
MAX_TEXTS = 256
# Most sentences fit the shortest shape, so only that one also exists as a batch: a text is never padded fourfold in two
# dimensions, and warm-up compiles four programs at most.
LENGTHS = (32, 128, 512)
BATCH = 16


class SentimentClassifier:
    """Texts -> the probability of each label. Thread-safe: users take turns, one device call each.

    Made by `from_pretrained`. Everything compiles there; `classify` never does.

    Args:
        model: a torch sequence classifier in evaluation mode, on the CPU.
        tokenizer: its tokenizer, with a padding token.
        on_report: called with each program's report during warm-up.

    Raises:
        ModelUnavailable: the tokenizer can't pad.
    """

    def __init__(self, model: Any, tokenizer: Any, *, on_report: Callable[[ProgramReport], None] = lambda report: None):
        if tokenizer.pad_token_id is None:
            raise ModelUnavailable(f"{type(tokenizer).__name__} has no padding token, and texts are padded here")
        config = model.config
        self.labels = [str(config.id2label[index]) for index in range(config.num_labels)]
        self._tokenizer = tokenizer
        limits = tokenizer.model_max_length, getattr(config, "max_position_embeddings", LENGTHS[-1]), LENGTHS[-1]
        self._token_limit = min(limits)
        self._lengths = [length for length in LENGTHS if length < self._token_limit] + [self._token_limit]
        self._lock = threading.Lock()

        # The rule of transformers' own text-classification pipeline.
        independent = config.problem_type == "multi_label_classification" or config.num_labels == 1

        def probabilities(model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            logits = model(input_ids=ids, attention_mask=mask).logits.float()
            return logits.sigmoid() if independent else logits.softmax(-1)

        programs = Programs(on_report)
        function = pure_function(model, probabilities)
        self._weights = weights_of(model)
        self._programs = {}
        for batch, length in [(BATCH, self._lengths[0]), *((1, length) for length in self._lengths)]:
            ids = np.zeros((batch, length), np.int32)
            self._programs[batch, length] = programs.compile(
                f"classify_{batch}x{length}", function, self._weights, ids, np.ones_like(ids)
            )
        self.classify(["warm-up"])

    @classmethod
    def from_pretrained(
        cls,
        source: str | os.PathLike[str],
        *,
        on_report: Callable[[ProgramReport], None] = lambda report: None,
    ) -> "SentimentClassifier":
        """Load a checkpoint from a folder or by hub id, compile its programs and run one.

        Raises:
            ModelUnavailable: in one line: which model, why not, and what would help.
        """
        prepare()
        model, loading = load_model(
            AutoModelForSequenceClassification.from_pretrained, source, dtype=torch.float32, output_loading_info=True
        )
        if missing := sorted(loading["missing_keys"]):
            raise ModelUnavailable(
                f"model {os.fspath(source)!r} is no trained classifier: its checkpoint lacks {missing[0]}"
            )
        return cls(model, load(AutoTokenizer.from_pretrained, source), on_report=on_report)

    @property
    def token_limit(self) -> int:
        """The most tokens of one text that the model reads, special tokens included; what is longer is cut there."""
        return self._token_limit

    def count_tokens(self, text: str) -> int:
        """Tokens of a text, special tokens included; where there are more than `token_limit`, `classify` cuts the text.

        Raises:
            RequestRejected: as `classify`.
        """
        text = checked_text(text, "text", MAX_CHARACTERS)
        with self._lock:
            return len(self._tokenizer(text, truncation=False, verbose=False)["input_ids"])

    def classify(self, texts: list[str]) -> list[dict[str, float]]:
        """The probability of each label for each text, labels in the checkpoint's order.

        Args:
            texts: at most MAX_TEXTS, of at most MAX_CHARACTERS characters each. A text of more than `token_limit`
                tokens is judged by its beginning.

        Raises:
            RequestRejected: the value and the limit; nothing was computed for any of the texts.
        """
        if not isinstance(texts, list):
            raise RequestRejected(f"texts: must be a list of texts, not {type(texts).__name__}")
        if len(texts) > MAX_TEXTS:
            raise RequestRejected(f"{len(texts):,} texts: at most {MAX_TEXTS} a call")
        for number, text in enumerate(texts, 1):
            checked_text(text, "text" if len(texts) == 1 else f"text {number}", MAX_CHARACTERS)
        if not texts:
            return []
        with self._lock:  # a fast tokenizer keeps its truncation as state, which threads must not share
            rows = self._tokenizer(texts, truncation=True, max_length=self._token_limit)["input_ids"]
        scores: dict[int, np.ndarray] = {}
        for members, program, ids, mask in self._batches(rows):
            with self._lock:
                result = np.asarray(program(self._weights, ids, mask))
            scores.update(zip(members, result, strict=False))  # a batch's last rows may be padding
        return [dict(zip(self.labels, scores[i].tolist(), strict=True)) for i in range(len(texts))]

    def _batches(self, rows: list[list[int]]) -> Iterator[tuple[list[int], Any, np.ndarray, np.ndarray]]:
        """Which rows go together, the program for them, and its arguments: ids and mask, int32 [batch, length]."""
        shortest = self._lengths[0]
        short = [i for i, row in enumerate(rows) if len(row) <= shortest]
        groups = [short[at : at + BATCH] for at in range(0, len(short), BATCH)]
        groups += [[i] for i, row in enumerate(rows) if len(row) > shortest]
        for members in groups:
            longest = max(len(rows[i]) for i in members)
            length = next(length for length in self._lengths if length >= longest)
            batch = BATCH if len(members) > 1 else 1
            ids = np.full((batch, length), self._tokenizer.pad_token_id, np.int32)
            mask = np.zeros((batch, length), np.int32)
            mask[:, 0] = 1  # a row of padding attends to something, so that its softmax is a number
            for row, member in enumerate(members):
                ids[row, : len(rows[member])] = rows[member]
                mask[row, : len(rows[member])] = 1
            yield members, self._programs[batch, length], ids, mask
