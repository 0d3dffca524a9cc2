"""A text classifier of transformers, unmodified, compiled ahead of time for a handful of padded shapes.

Takes any checkpoint of AutoModelForSequenceClassification that reads `input_ids` and `attention_mask`, on one device. A
model for natural-language inference (NLI) also classifies with labels of the user's own.
A checkpoint is a model, or a LoRA adapter with a head of its own and the base that both change.
"""

import json
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from hfjax_app.errors import EngineStopped, HfjaxError, ModelUnavailable, RequestRejected
from hfjax_app.limits import (
    SENTIMENT_MAX_CHARACTERS,
    ZERO_SHOT_MAX_CHARACTERS,
    ZERO_SHOT_MAX_LABEL_CHARACTERS,
    ZERO_SHOT_MAX_LABELS,
)
from hfjax_app.line import FairLine
from hfjax_app.runtime.bundle import Bundle
from hfjax_app.runtime.checkpoints.empty_model import empty_model
from hfjax_app.runtime.checkpoints.hub import fetch
from hfjax_app.runtime.checkpoints.lora import base_and_adapter
from hfjax_app.runtime.checkpoints.safetensors_reader import read
from hfjax_app.runtime.checkpoints.tokenizer_files import NoTokenizer, load
from hfjax_app.runtime.memory import HeldMemory, bytes_of
from hfjax_app.runtime.mesh import replicated, serving_mesh
from hfjax_app.runtime.module import Weights, weights_of
from hfjax_app.runtime.parallel_calls import Calls
from hfjax_app.runtime.process import prepare
from hfjax_app.runtime.program_report import ProgramReport
from hfjax_app.runtime.programs import Programs
from hfjax_app.runtime.tracing import why_untraceable
from hfjax_app.runtime.transforms import calls_at_once
from hfjax_app.runtime.warm_up import OnExpected, WarmUp, ignore
from hfjax_app.sentiment.encoding import Encoder, TokenIds
from hfjax_app.sentiment.interface import Explanation, Prediction, checked_texts
from hfjax_app.sentiment.padded_forward import choose_padding
from hfjax_app.sentiment.programs import ClassifierPrograms, checked_labels
from hfjax_app.validation import checked_label_names, checked_text, quoted


class ClassifierCheckpoint:
    """What a source holds.

    Args:
        source: a folder or a hub id. Of an adapter its file is read, which says how many labels there are.

    Raises:
        ModelUnavailable: there is no such source, it is another kind of adapter, or its base is not here.

    Attributes:
        sources: the adapter and its base, or the model alone.
    """

    def __init__(self, source: str | os.PathLike[str]):
        self._source = source
        self._base, self._adapter = base_and_adapter(source)
        self.sources = tuple(dict.fromkeys((source, self._base)))

    def model(self) -> PreTrainedModel:
        """The classifier without its weights, in float32.

        Raises:
            ModelUnavailable: as `empty_model`.
        """
        model = empty_model(AutoModelForSequenceClassification, self._base, torch.float32)
        if self._adapter is None:
            return model
        shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        usual = int(model.config.num_labels or 0)
        count, said = self._adapter.labels(shapes, usual), self._said_labels()
        if len(said) == count:
            labels = said
        elif count == usual:
            return model
        else:
            labels = [f"LABEL_{at}" for at in range(count)]
        return empty_model(AutoModelForSequenceClassification, self._base, torch.float32, labels=labels)

    def _said_labels(self) -> list[str]:
        """The labels in a configuration beside the adapter's; empty: there is none."""
        try:
            config = json.loads((fetch(self._source, weights=False) / "config.json").read_text(encoding="utf-8"))
            return [str(config["id2label"][str(at)]) for at in range(len(config["id2label"]))]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def tokenizer(self) -> Any:
        """The source's tokenizer, or else its base's.

        Raises:
            ModelUnavailable: as `load`.
        """
        try:
            return load(AutoTokenizer.from_pretrained, self._source)
        except NoTokenizer:
            if len(self.sources) == 1:
                raise
            return load(AutoTokenizer.from_pretrained, self._base)

    def weights(self, model: PreTrainedModel) -> Weights:
        """The weights of `model()`, with the adapter merged. Raises: as `read`."""
        return read(model, self._base, adapter=self._adapter)


_HYPOTHESIS = "This example is {}."  # of transformers' pipeline
_Pairs = Sequence[tuple[str, str]]


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
        calls = Calls("sentiment-call", calls_at_once(None))
        self._line = FairLine(calls.at_once)
        mesh = serving_mesh(jax.local_devices()[:1])
        self._weights = weights_of(model) if weights is None else weights
        choose_padding(model, self._weights, self._encoder)
        if mesh is not None:
            self._weights = jax.device_put(self._weights, replicated(mesh))
        self._programs = ClassifierPrograms(
            model,
            self._encoder,
            self._weights,
            self._line,
            calls,
            on_cpu=jax.default_backend() == "cpu",
            explains=explains,
        )
        programs = Programs(on_report, mesh, bundle=bundle)
        self.warm_up = WarmUp(programs, self._programs.specs(), staged=staged, on_expected=on_expected)
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
        self._batcher = MicroBatcher(partial(self.predict, urgent=True))
        self.classify(["warm-up"])

    @classmethod
    def from_pretrained(
        cls,
        source: str | os.PathLike[str],
        **options: Any,
    ) -> "SentimentClassifier":
        """Load a checkpoint from a folder or by hub id, compile its programs and run them.

        Args:
            source: a folder or a hub id, of a model or of a LoRA adapter.
            options: the constructor's.

        Raises:
            ModelUnavailable: in one line: which model, why not, and what would help.
        """
        prepare()
        checkpoint = ClassifierCheckpoint(source)
        model, tokenizer = checkpoint.model(), checkpoint.tokenizer()
        return cls(model, tokenizer, weights=checkpoint.weights(model), **options)

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
        if self._programs.explainer is None:
            raise ModelUnavailable(
                "this classifier has no explanations: it is an encoder-decoder, or was loaded without"
            )
        if label is None:
            scores = self.classify([text])[0]
            label = max(scores, key=scores.__getitem__)
        return self._programs.explainer.explain(text, self.labels.index(label), label, urgent=urgent)

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

    def _logits_of_pairs(self, pairs: _Pairs) -> np.ndarray:
        return self._logits(self._encoder.encode_pairs(pairs), urgent=True)

    def _predict_together(self, texts: list[str], urgent: bool) -> list[Prediction | Exception]:
        if not texts:
            return []
        tokens = self._encoder.encode(texts)
        rows = self._logits(tokens, urgent=urgent)
        return [self._prediction(row, text.cut) for row, text in zip(rows, tokens, strict=True)]

    def _logits(self, texts: list[TokenIds], *, urgent: bool) -> np.ndarray:
        """Logits of the texts, float32 [texts, labels]."""
        self.texts += len(texts)
        return self._programs.logits(texts, urgent=urgent)

    def _prediction(self, logits: np.ndarray, cut: bool) -> Prediction | ModelUnavailable:
        if not np.isfinite(logits).all():
            return ModelUnavailable("the model's scores of this text are no numbers (NaN or infinite)")
        shares = np.exp(logits.astype(np.float64) - (0 if self.multi_label else logits.max()))
        scores = shares / (1 + shares) if self.multi_label else shares / shares.sum()
        by_label = dict(zip(self.labels, scores.tolist(), strict=True))
        return Prediction(scores=by_label, multi_label=self.multi_label, cut=cut)


def entailment_of(model: Any) -> int | None:
    """The index of the label "entailment"; None where the model can't judge pairs of texts here.

    A model with embeddings of the first and the second text (BERT's token types) would need them as an input.
    """
    config = model.config
    if (getattr(config, "type_vocab_size", 0) or 0) > 1 or config.num_labels < 2:
        return None
    indices = (index for index, label in config.id2label.items() if str(label).lower().startswith("entail"))
    return next(indices, None)


class NliZeroShot:
    """Texts and labels -> probabilities, as in transformers' pipeline.

    Each label makes a sentence, "This example is LABEL.", and the model says how much a text entails it (Yin et al.,
    arXiv:1909.00161); the logits of entailment are compared.

    Args:
        entailment: the index of this label.
        logits: of pairs of texts: float [pairs, labels of the model].
    """

    def __init__(self, entailment: int, logits: Callable[[_Pairs], np.ndarray]):
        self._entailment, self._logits = entailment, logits

    def check(self, text: object, labels: object) -> tuple[str, ...]:
        """Raise RequestRejected for what `classify` refuses; returns the labels."""
        checked_text(text, "text", ZERO_SHOT_MAX_CHARACTERS)
        return checked_label_names(labels, ZERO_SHOT_MAX_LABELS, ZERO_SHOT_MAX_LABEL_CHARACTERS)

    def classify(self, text: str, labels: list[str]) -> dict[str, float]:
        """The probability of each label, in their order. A long text is cut at its end.

        Raises:
            RequestRejected: the value and the limit; nothing was computed.
            ModelUnavailable: the model's logits are not finite.
        """
        names = self.check(text, labels)
        logits = self._logits([(text, _HYPOTHESIS.format(name)) for name in names])[:, self._entailment]
        if not np.isfinite(logits).all():
            raise ModelUnavailable("the model's scores of these labels are not numbers (NaN or infinite)")
        shares = np.exp(logits - logits.max())
        return dict(zip(names, (shares / shares.sum()).tolist(), strict=True))


WINDOW_S = 0.002
LIMIT = 64  # the most texts of one call

_Request = tuple[str, "Future[Prediction]"]


class MicroBatcher:
    """A thread that gathers requests and classifies them together.

    Args:
        predict: texts -> a prediction or an exception for each; an exception fails its own text only.
        window_s: how long the first request of a batch waits for others, in seconds.
    """

    def __init__(self, predict: Callable[[list[str]], list[Prediction | Exception]], *, window_s: float = WINDOW_S):
        self._predict = predict
        self._window_s = window_s
        self._inbox: queue.Queue[_Request | None] = queue.Queue()
        self._lock = threading.Lock()  # no request may follow the end marker
        self._open = True
        self._thread = threading.Thread(target=self._run, name="sentiment", daemon=True)
        self._thread.start()

    def submit(self, text: str) -> "Future[Prediction]":
        """Queue a checked text. Admission limits how many wait.

        Raises:
            EngineStopped: `stop` was called.
        """
        future: Future[Prediction] = Future()
        with self._lock:
            if not self._open:
                raise EngineStopped("the classifier was stopped")
            self._inbox.put((text, future))
        return future

    def stop(self) -> None:
        """Classify the texts in the queue and end the thread. May be called twice."""
        with self._lock:
            was_open, self._open = self._open, False
        if was_open:
            self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            first = self._inbox.get()
            if first is None:
                return
            requests, is_last = self._gather(first)
            live = [(text, future) for text, future in requests if future.set_running_or_notify_cancel()]
            if not live:
                continue
            try:
                predictions = self._predict([text for text, _ in live])
            except Exception as error:  # a bug: every waiting request fails with it, and the thread goes on
                predictions = [error] * len(live)
            for (_, future), prediction in zip(live, predictions, strict=True):
                if isinstance(prediction, Exception):
                    future.set_exception(prediction)
                else:
                    future.set_result(prediction)

    def _gather(self, first: _Request) -> tuple[list[_Request], bool]:
        """The requests within the window that the first one opens, and whether the end marker was among them."""
        requests, deadline = [first], time.monotonic() + self._window_s
        while len(requests) < LIMIT:
            try:
                request = self._inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if request is None:
                return requests, True
            requests.append(request)
        return requests, False
