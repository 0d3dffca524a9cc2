"""A text classifier of transformers, unmodified, compiled ahead of time for a handful of padded shapes.

Takes any checkpoint of AutoModelForSequenceClassification that reads `input_ids` and `attention_mask`. Does not shard:
a classifier fits one device.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import chain
from typing import Any

import jax
import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from hfjax_app.errors import ModelUnavailable, RequestRejected
from hfjax_app.runtime.calls import Calls
from hfjax_app.runtime.empty_model import empty_model
from hfjax_app.runtime.hub import load
from hfjax_app.runtime.module import Weights, weights_of
from hfjax_app.runtime.process import prepare
from hfjax_app.runtime.programs import ProgramReport, Programs
from hfjax_app.runtime.weights import read
from hfjax_app.sentiment.encoding import Encoded, Encoder
from hfjax_app.sentiment.explanation import Explanation
from hfjax_app.sentiment.micro_batch import MicroBatcher
from hfjax_app.sentiment.programs import ClassifierPrograms, checked_labels
from hfjax_app.sentiment.request import MAX_CHARACTERS, checked_texts
from hfjax_app.sentiment.turns import Turns
from hfjax_app.sentiment.verdict import Verdict
from hfjax_app.text import checked_text

_Batch = tuple[list[int], int, int]  # which texts, the rows of their program, its length


class SentimentClassifier:
    """Texts -> the probability of each label. Thread-safe: users take turns, one device call each, on a CPU two.

    Made by `from_pretrained`. Everything compiles there; afterwards nothing does.

    Args:
        model: a torch sequence classifier in evaluation mode, on the CPU; it is read, never changed.
        tokenizer: its tokenizer, with a padding token.
        weights: the model's weights; None: those that `model` holds.
        explains: whether to compile what `explain` needs too.
        on_report: called with each program's report during warm-up.

    Raises:
        ModelUnavailable: the tokenizer can't pad or is a slow one, or the model is a regression.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        weights: Weights | None = None,
        explains: bool = True,
        on_report: Callable[[ProgramReport], None] = lambda report: None,
    ):
        self.labels, self.multi_label = checked_labels(model)
        self._encoder = Encoder(tokenizer, model)
        self._turns = Turns()
        self._calls = Calls("sentiment-call")
        self._weights = weights_of(model) if weights is None else weights
        compiled = ClassifierPrograms(
            model,
            self._encoder,
            self._weights,
            Programs(on_report),
            self._turns,
            self._calls,
            on_cpu=jax.default_backend() == "cpu",
            explains=explains,
        )
        self._programs, self._batch, self._fewest = compiled.of_shape, compiled.batch, compiled.fewest
        self._explainer = compiled.explainer
        self._batcher = MicroBatcher(self._judge_now)
        self.classify(["warm-up"])

    @classmethod
    def from_pretrained(
        cls,
        source: str | os.PathLike[str],
        *,
        explains: bool = True,
        on_report: Callable[[ProgramReport], None] = lambda report: None,
    ) -> "SentimentClassifier":
        """Load a checkpoint from a folder or by hub id, compile its programs and run one.

        Raises:
            ModelUnavailable: in one line: which model, why not, and what would help.
        """
        prepare()
        model = empty_model(AutoModelForSequenceClassification, source, torch.float32)
        tokenizer = load(AutoTokenizer.from_pretrained, source)
        return cls(model, tokenizer, weights=read(model, source), explains=explains, on_report=on_report)

    @property
    def token_limit(self) -> int:
        """The most tokens of one text that the model reads, special tokens included; what is longer is cut there."""
        return self._encoder.token_limit

    def count_tokens(self, text: str) -> int:
        """Tokens of a text, special tokens included; where there are more than `token_limit`, `classify` cuts the text.

        Raises:
            RequestRejected: as `classify`.
        """
        return self._encoder.count(checked_text(text, "text", MAX_CHARACTERS))

    def classify(self, texts: list[str]) -> list[dict[str, float]]:
        """The probability of each label for each text, labels in the checkpoint's order.

        Args:
            texts: at most MAX_TEXTS, of at most MAX_CHARACTERS characters each. A text of more than `token_limit`
                tokens is judged by its beginning.

        Raises:
            RequestRejected: the value and the limit; nothing was computed for any of the texts.
            ModelUnavailable: the model's scores of a text are no numbers.
        """
        verdicts = self.judge(checked_texts(texts), urgent=len(texts) == 1)
        for verdict in verdicts:
            if isinstance(verdict, Exception):
                raise verdict
        return [verdict.scores for verdict in verdicts]

    def submit(self, text: str) -> "Future[Verdict]":
        """One text of one user; texts that come within a few milliseconds share a device call, and fail alone.

        Raises:
            RequestRejected: not a text, blank, too long, or too many are waiting.
            EngineStopped: `stop` was called.
        """
        return self._batcher.submit(checked_text(text, "text", MAX_CHARACTERS))

    def explain(self, text: str, label: str | None = None) -> Explanation:
        """How much each word moved the model towards a label, or away from it.

        Args:
            text: as for `classify`.
            label: one of `labels`; None: the likeliest one.

        Raises:
            RequestRejected: as `classify`, or there is no such label.
            ModelUnavailable: the classifier was made without `explains`.
        """
        checked_text(text, "text", MAX_CHARACTERS)
        if label is not None and label not in self.labels:
            raise RequestRejected(f"label {label!r}: must be one of {', '.join(self.labels)}")
        if self._explainer is None:
            raise ModelUnavailable("this classifier was loaded without explanations")
        if label is None:
            scores = self.classify([text])[0]
            label = max(scores, key=scores.__getitem__)
        return self._explainer.explain(text, self.labels.index(label), label)

    def stop(self) -> None:
        """End the thread that gathers single texts; those that wait are still answered."""
        self._batcher.stop()

    def judge(self, texts: list[str], *, urgent: bool = False) -> list[Verdict | Exception]:
        """A verdict for each text, or the exception that this text alone caused.

        Args:
            texts: checked ones, any number.
            urgent: whether to go before callers who are not.
        """
        try:
            return self._judge_together(texts, urgent)
        except Exception as error:
            if len(texts) == 1:
                return [error]
        return [self.judge([text], urgent=urgent)[0] for text in texts]

    def _judge_now(self, texts: list[str]) -> list[Verdict | Exception]:
        return self.judge(texts, urgent=True)

    def _judge_together(self, texts: list[str], urgent: bool) -> list[Verdict | Exception]:
        if not texts:
            return []
        encoded = self._encoder.encode(texts)
        verdicts: list[Verdict | Exception] = [ModelUnavailable("unreachable")] * len(texts)
        for lanes in self._turns_of(list(self._batches(encoded))):
            scores = self._scores(encoded, lanes, urgent)
            for (members, _, _), rows in zip(chain(*lanes), chain(*scores), strict=True):
                for member, row in zip(members, rows.tolist(), strict=False):  # the last rows may be padding
                    verdicts[member] = self._verdict(row, encoded[member].cut)
        return verdicts

    def _scores(self, encoded: list[Encoded], lanes: list[list[_Batch]], urgent: bool) -> list[list[np.ndarray]]:
        """Of each batch float32 [rows, labels]: all in one turn, the lanes side by side."""

        def call(batch: _Batch) -> np.ndarray:
            members, rows, length = batch
            ids, mask = self._encoder.padded([encoded[member].ids for member in members], rows, length)
            return np.asarray(self._programs[rows, length](self._weights, ids, mask))

        with self._turns.turn(urgent=urgent):
            return self._calls.together(lambda lane: [call(batch) for batch in lane], lanes)

    def _turns_of(self, batches: list[_Batch]) -> Iterator[list[list[_Batch]]]:
        """For each turn its lanes: the largest batch, and beside it as many others as take about as long."""
        waiting = sorted(batches, key=_size, reverse=True)
        while waiting:
            largest = waiting.pop(0)
            lanes = [[largest]]
            while waiting and len(lanes) < self._calls.at_once:
                lane = [waiting.pop(0)]
                room = _size(largest) - _size(lane[0])
                for batch in list(waiting):
                    if _size(batch) <= room:
                        waiting.remove(batch)
                        lane.append(batch)
                        room -= _size(batch)
                lanes.append(lane)
            yield lanes

    def _batches(self, encoded: list[Encoded]) -> Iterator[_Batch]:
        """Which texts go together, in a program of how many rows and what length.

        The longest go first, each batch as long as its longest text; so texts in a batch are of similar lengths, and
        only the last batch has rows of padding, if it is worth its while.
        """
        waiting = sorted(range(len(encoded)), key=lambda member: -len(encoded[member].ids))
        at = 0
        while at < len(waiting):
            length = self._encoder.fitting(len(encoded[waiting[at]].ids))
            members = waiting[at : at + self._batch[length]]
            if len(members) < self._fewest[length]:
                members = members[:1]
            yield members, self._batch[length] if len(members) > 1 else 1, length
            at += len(members)

    def _verdict(self, scores: list[float], cut: bool) -> Verdict | ModelUnavailable:
        if not np.isfinite(scores).all():
            return ModelUnavailable("the model's scores of this text are no numbers (NaN or infinite)")
        return Verdict(scores=dict(zip(self.labels, scores, strict=True)), multi_label=self.multi_label, cut=cut)


def _size(batch: _Batch) -> int:
    """Tokens that the device reads."""
    _, rows, length = batch
    return rows * length
