"""A text classifier of transformers, unmodified, compiled ahead of time for a handful of padded shapes.

Takes any checkpoint of AutoModelForSequenceClassification that reads `input_ids` and `attention_mask`. Does not shard:
a classifier fits one device.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import cached_property
from typing import Any

import jax
import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from hfjax_app.errors import HfjaxError, ModelUnavailable, RequestRejected
from hfjax_app.limits import SENTIMENT_MAX_CHARACTERS
from hfjax_app.runtime.bundle import Bundle
from hfjax_app.runtime.checkpoints.empty_model import empty_model
from hfjax_app.runtime.checkpoints.safetensors_reader import read
from hfjax_app.runtime.checkpoints.tokenizer_files import load
from hfjax_app.runtime.held_memory import HeldMemory, bytes_of
from hfjax_app.runtime.mesh import replicated, serving_mesh
from hfjax_app.runtime.module import Weights, weights_of
from hfjax_app.runtime.parallel_calls import Calls
from hfjax_app.runtime.process import prepare
from hfjax_app.runtime.program_report import ProgramReport
from hfjax_app.runtime.programs import Programs
from hfjax_app.runtime.tracing import why_untraceable
from hfjax_app.runtime.transforms import calls_at_once
from hfjax_app.runtime.warm_up import OnExpected, WarmUp, ignore
from hfjax_app.sentiment.encoding import Encoded, Encoder
from hfjax_app.sentiment.explanation import Explanation
from hfjax_app.sentiment.micro_batch import MicroBatcher
from hfjax_app.sentiment.padding_side import choose_padding
from hfjax_app.sentiment.prediction import Prediction
from hfjax_app.sentiment.priority_semaphore import PrioritySemaphore
from hfjax_app.sentiment.programs import ClassifierPrograms, checked_labels
from hfjax_app.sentiment.request import checked_texts
from hfjax_app.sentiment.zero_shot import NliZeroShot, Pairs, entailment_of
from hfjax_app.validation import checked_text, quoted

_Batch = tuple[list[int], int, int]  # indices of the texts, rows of their program, its length


class SentimentClassifier:
    """Texts -> the probability of each label. Thread-safe: requests alternate, one device call each, on a CPU two.

    `from_pretrained` makes one. Its programs are compiled there, or join by `warm_up.load`; calls compile nothing.

    Args:
        model: a torch sequence classifier in evaluation mode, on the CPU; it is not changed.
        tokenizer: its tokenizer.
        weights: the model's weights; None: those in `model`.
        explains: whether to compile the programs of `explain` too.
        on_report: called with each program's report.
        on_expected: called before the first program is compiled, see `OnExpected`.
        bundle: programs that another process compiled; None: none are kept.
        staged: whether only the program that serves every text is compiled now, if there is a bundle.

    Raises:
        ModelUnavailable: the tokenizer is a slow one, or the model is a regression model, can't be traced, or judges
            padding; says why.

    Attributes:
        zero_shot: classifies with labels of the user's own; None where the model is none for NLI.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        weights: Weights | None = None,
        explains: bool = True,
        on_report: Callable[[ProgramReport], None] = lambda report: None,
        on_expected: OnExpected = ignore,
        bundle: Bundle | None = None,
        staged: bool = False,
    ):
        self.labels, self.multi_label = checked_labels(model)
        self.texts = 0  # that were given to the model
        self._encoder = Encoder(tokenizer, model)
        self._calls = Calls("sentiment-call", calls_at_once(None))
        self._semaphore = PrioritySemaphore(self._calls.at_once)
        mesh = serving_mesh(jax.local_devices()[:1])
        self._weights = weights_of(model) if weights is None else weights
        choose_padding(model, self._weights, self._encoder)
        if mesh is not None:
            self._weights = jax.device_put(self._weights, replicated(mesh))
        compiled = ClassifierPrograms(
            model,
            self._encoder,
            self._weights,
            self._semaphore,
            self._calls,
            on_cpu=jax.default_backend() == "cpu",
            explains=explains,
        )
        self._programs, self._call = compiled.of_shape, compiled.call
        self._explainer = compiled.explainer
        programs = Programs(on_report, mesh, bundle=bundle)
        self.warm_up = WarmUp(programs, compiled.specs(), staged=staged, on_expected=on_expected)
        try:
            self.warm_up.start()
        except HfjaxError:
            raise
        except Exception as error:
            raise ModelUnavailable(
                f"{type(model).__name__} can't be compiled: {why_untraceable(error)}; take a classifier of another "
                "architecture"
            ) from error
        entailment = entailment_of(model)
        self.zero_shot = None if entailment is None else NliZeroShot(entailment, self._logits_of_pairs)
        self._batcher = MicroBatcher(self._predict_urgently)
        self.classify(["warm-up"])

    @classmethod
    def from_pretrained(
        cls,
        source: str | os.PathLike[str],
        **options: Any,
    ) -> "SentimentClassifier":
        """Load a checkpoint from a folder or by hub id, compile its programs and run them.

        Args:
            source: a folder or a hub id.
            options: the constructor's.

        Raises:
            ModelUnavailable: in one line: which model, why not, and what would help.
        """
        prepare()
        model = empty_model(AutoModelForSequenceClassification, source, torch.float32)
        tokenizer = load(AutoTokenizer.from_pretrained, source)
        return cls(model, tokenizer, weights=read(model, source), **options)

    @cached_property
    def held_memory(self) -> HeldMemory:
        """What the weights take."""
        return HeldMemory(weights=bytes_of([self._weights]))

    @property
    def token_limit(self) -> int:
        """The most tokens of one text that the model reads, special tokens included; longer texts are cut."""
        return self._encoder.token_limit

    def count_tokens(self, text: str) -> int:
        """The number of tokens of a text, special tokens included. `classify` cuts a text of more than `token_limit`.

        Raises:
            RequestRejected: as `classify`.
        """
        return self._encoder.count(checked_text(text, "text", SENTIMENT_MAX_CHARACTERS))

    def classify(self, texts: list[str]) -> list[dict[str, float]]:
        """The probability of each label for each text, labels in the checkpoint's order.

        Args:
            texts: at most SENTIMENT_MAX_TEXTS, of at most SENTIMENT_MAX_CHARACTERS characters each. A text of more than
                `token_limit` tokens is cut.

        Raises:
            RequestRejected: the value and the limit; nothing was computed for any of the texts.
            ModelUnavailable: the model's scores of a text are not finite.
        """
        scores = []
        for prediction in self.predict(checked_texts(texts), urgent=len(texts) == 1):
            if isinstance(prediction, Exception):
                raise prediction
            scores.append(prediction.scores)
        return scores

    def submit(self, text: str) -> "Future[Prediction]":
        """Classify one text. Texts submitted within a few milliseconds share a device call, and fail one by one.

        Raises:
            RequestRejected: not a text, blank, too long, or too many are waiting.
            EngineStopped: `stop` was called.
        """
        return self._batcher.submit(checked_text(text, "text", SENTIMENT_MAX_CHARACTERS))

    def check(self, text: object, label: object = None) -> None:
        """Raise RequestRejected as `explain` would, and without a label as `classify`."""
        checked_text(text, "text", SENTIMENT_MAX_CHARACTERS)
        if label is not None and label not in self.labels:
            raise RequestRejected(f"label {quoted(label)}: must be one of {', '.join(self.labels)}")

    def explain(self, text: str, label: str | None = None, *, urgent: bool = True) -> Explanation:
        """How much each word moved the model towards a label, or away from it.

        Args:
            text: as for `classify`.
            label: one of `labels`; None: the likeliest one.
            urgent: whether to go before calls that are not urgent.

        Raises:
            RequestRejected: as `classify`, or there is no such label.
            ModelUnavailable: the classifier was made without `explains`.
        """
        self.check(text, label)
        if self._explainer is None:
            raise ModelUnavailable(
                "this classifier has no explanations: it is an encoder-decoder, or was loaded without"
            )
        if label is None:
            scores = self.classify([text])[0]
            label = max(scores, key=scores.__getitem__)
        return self._explainer.explain(text, self.labels.index(label), label, urgent=urgent)

    def stop(self) -> None:
        """End the thread that gathers single texts; texts in the queue are still classified."""
        self._batcher.stop()

    def predict(self, texts: list[str], *, urgent: bool = False) -> list[Prediction | Exception]:
        """A prediction for each text, or the exception that this text caused.

        Args:
            texts: any number, already checked.
            urgent: whether to go before calls that are not urgent.
        """
        try:
            return self._predict_together(texts, urgent)
        except Exception as error:
            if len(texts) == 1:
                return [error]
        return [self.predict([text], urgent=urgent)[0] for text in texts]

    def _logits_of_pairs(self, pairs: Pairs) -> np.ndarray:
        return self._logits(self._encoder.encode_pairs(pairs), urgent=True)

    def _predict_urgently(self, texts: list[str]) -> list[Prediction | Exception]:
        return self.predict(texts, urgent=True)

    def _predict_together(self, texts: list[str], urgent: bool) -> list[Prediction | Exception]:
        if not texts:
            return []
        encoded = self._encoder.encode(texts)
        rows = self._logits(encoded, urgent=urgent)
        return [self._prediction(row, text.cut) for row, text in zip(rows, encoded, strict=True)]

    def _logits(self, encoded: list[Encoded], *, urgent: bool) -> np.ndarray:
        """Logits of the texts, float32 [texts, labels]."""
        self.texts += len(encoded)
        logits = np.empty((len(encoded), len(self.labels)), np.float32)

        def call(batch: _Batch) -> np.ndarray:
            """float32 [rows, labels]."""
            members, rows, length = batch
            ids, mask = self._encoder.padded([encoded[member].ids for member in members], rows, length)
            with self._semaphore.hold(urgent=urgent):
                return np.asarray(self._programs[rows, length](self._weights, ids, mask))

        batches = sorted(
            self._batches(encoded), key=_size, reverse=True
        )  # the longest first: with two at a time, the last to end is short
        for (members, _, _), rows in zip(batches, self._calls.each(call, batches), strict=True):
            logits[members] = rows[: len(members)]  # the last rows may be padding
        return logits

    def _batches(self, encoded: list[Encoded]) -> Iterator[_Batch]:
        """Divide the texts into device calls.

        The texts are ordered by length, the longest first, and each batch is as long as its longest text. Of all ways
        to divide that order into batches and single texts, the cheapest is taken; padding and calls are counted.
        """
        order = sorted(range(len(encoded)), key=lambda member: -len(encoded[member].ids))
        shapes = [*self._programs]  # more may join meanwhile
        covering = sorted(length for rows, length in shapes if rows == 1)
        lengths = [next(n for n in covering if n >= len(encoded[member].ids)) for member in order]
        most = {length: max(rows for rows, of in shapes if of == length) for length in covering}
        costs, taken = (
            [0] * (len(order) + 1),
            [1] * len(order),
        )  # costs[i]: of all texts from i on; taken[i]: rows of the call that begins at i
        for at in reversed(range(len(order))):
            ways = {
                rows: self._call + rows * lengths[at] + costs[min(at + rows, len(order))]
                for rows in (1, most[lengths[at]])
            }
            taken[at] = min(ways, key=ways.__getitem__)
            costs[at] = ways[taken[at]]
        at = 0
        while at < len(order):
            rows = taken[at]
            yield order[at : at + rows], rows, lengths[at]
            at += rows

    def _prediction(self, logits: np.ndarray, cut: bool) -> Prediction | ModelUnavailable:
        if not np.isfinite(logits).all():
            return ModelUnavailable("the model's scores of this text are no numbers (NaN or infinite)")
        shares = np.exp(logits.astype(np.float64) - (0 if self.multi_label else logits.max()))
        scores = shares / (1 + shares) if self.multi_label else shares / shares.sum()
        scored = dict(zip(self.labels, scores.tolist(), strict=True))
        return Prediction(scores=scored, multi_label=self.multi_label, cut=cut)


def _size(batch: _Batch) -> int:
    """Tokens that the device reads, padding included."""
    _, rows, length = batch
    return rows * length
