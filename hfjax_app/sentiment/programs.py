"""A classifier's compiled programs, each for token ids of one padded shape, and how texts are divided between them."""

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np

from hfjax_app.errors import ModelUnavailable
from hfjax_app.line import FairLine
from hfjax_app.runtime.module import Shapes, Weights, pure_function
from hfjax_app.runtime.parallel_calls import Calls
from hfjax_app.runtime.programs import Program
from hfjax_app.runtime.warm_up import ProgramSpec
from hfjax_app.sentiment.encoding import USUAL, Encoder, Lengths, TokenIds, input_embeddings
from hfjax_app.sentiment.explanation import Explainer
from hfjax_app.sentiment.padded_forward import logits_of

# Tokens of a batch, padding included. More bring nothing on a CPU; fewer leave an accelerator idle.
CPU_TOKENS, DEVICE_TOKENS = 512, 16_384
FEWEST_ROWS = 4  # a smaller batch is no faster than its texts one by one
# The fixed cost of a call, in tokens that take the same time: measured on a CPU; elsewhere any batch beats two calls.
CPU_CALL, DEVICE_CALL = 48, DEVICE_TOKENS

_Batch = tuple[list[int], int, int]  # indices of the texts, rows of their program, its length


def checked_labels(model: Any) -> tuple[list[str], bool]:
    """A classifier's labels, and whether several may apply to a text, by the rule of transformers' own pipeline.

    Raises:
        ModelUnavailable: the model is a regression model, it takes no attention mask, or two labels have the same name.
    """
    config = model.config
    if config.problem_type == "regression":
        raise ModelUnavailable(
            f"{type(model).__name__} is a regression model: its output is not the probability of a label"
        )
    if "attention_mask" not in inspect.signature(model.forward).parameters:
        raise ModelUnavailable(
            f"{type(model).__name__} takes no attention mask, so it would judge the padding of a text too: take a "
            "classifier of another architecture"
        )
    labels = [str(config.id2label[index]) for index in range(config.num_labels)]
    if len(set(labels)) < len(labels):
        raise ModelUnavailable(f"{type(model).__name__}: two labels have the same name: {', '.join(labels)}")
    return labels, config.problem_type == "multi_label_classification" or config.num_labels == 1


class ClassifierPrograms:
    """Programs for each padded length, of one row and of a batch.

    Args:
        model: a torch sequence classifier; it is not changed.
        encoder: tokenizes texts; `Lengths` is enough for planned programs.
        weights: the model's, or for planned programs their shapes.
        line: of device calls, single texts before lists.
        calls: runs programs in parallel.
        on_cpu: whether the device is a CPU, for which batches are small.
        explains: whether there are programs of explanations too.

    Attributes:
        of_shape: those in use: (rows, length) -> the program from weights, ids and mask (int32 of that shape) to
            logits (float32 [rows, labels]).
        explainer: None without `explains`, for an encoder-decoder, and for a model without embeddings of tokens.
    """

    def __init__(
        self,
        model: Any,
        encoder: Encoder | Lengths,
        weights: Weights | Shapes,
        line: FairLine,
        calls: Calls,
        *,
        on_cpu: bool,
        explains: bool,
    ):
        self._function = pure_function(model, logits_of)
        self._encoder, self._weights, self._line, self._calls = encoder, weights, line, calls
        self._labels = model.config.num_labels
        self._lengths, self._tokens = encoder.lengths, CPU_TOKENS if on_cpu else DEVICE_TOKENS
        self._call = CPU_CALL if on_cpu else DEVICE_CALL
        self.of_shape: dict[tuple[int, int], Program] = {}
        # the decoder of an encoder-decoder embeds the text again, moved by one token
        explains = explains and not model.config.is_encoder_decoder and input_embeddings(model) is not None
        self.explainer = Explainer(model, encoder, weights, line, calls) if explains else None

    @property
    def _usual(self) -> int:
        return self._encoder.fitting(min(USUAL, self._encoder.token_limit))

    def specs(self) -> list[ProgramSpec]:
        """The programs, those that are needed most first. One row of the greatest length serves every text; where that
        would be slow for a usual text, there is one more from the beginning."""
        first = dict.fromkeys((self._lengths[-1], self._usual, *self._lengths))
        ones = [(1, length) for length in first]
        batches = [
            (self._tokens // length, length) for length in self._lengths if self._tokens // length >= FEWEST_ROWS
        ]
        explaining = [] if self.explainer is None else self.explainer.specs()
        return [*map(self._spec, ones), *explaining, *map(self._spec, batches)]

    def _spec(self, shape: tuple[int, int]) -> ProgramSpec:
        ids = np.zeros(shape, np.int32)
        arguments = (ids, np.ones_like(ids))

        def join(program: Program) -> None:
            with self._line.hold(urgent=False):
                np.asarray(program(self._weights, *arguments))
            self.of_shape[shape] = program

        rows, length = shape
        return ProgramSpec(
            name=f"classify_{rows}x{length}",
            function=self._function,
            args=(self._weights, *arguments),
            join=join,
            general=shape in ((1, self._lengths[-1]), (1, self._usual)),
        )

    def logits(self, texts: list[TokenIds], *, urgent: bool) -> np.ndarray:
        """Logits of the texts, float32 [texts, labels]. Urgent calls go before those that are not."""
        assert isinstance(self._encoder, Encoder)  # planned programs judge nothing
        encoder = self._encoder
        logits = np.empty((len(texts), self._labels), np.float32)

        def call(batch: _Batch) -> np.ndarray:
            """float32 [rows, labels]."""
            members, rows, length = batch
            ids, mask = encoder.padded([texts[member].ids for member in members], rows, length)
            with self._line.hold(urgent=urgent):
                return np.asarray(self.of_shape[rows, length](self._weights, ids, mask))

        # the longest first: with two at a time, the last to end is short
        batches = sorted(self._batches(texts), key=lambda batch: batch[1] * batch[2], reverse=True)
        for (members, _, _), rows in zip(batches, self._calls.each(call, batches), strict=True):
            logits[members] = rows[: len(members)]  # the last rows may be padding
        return logits

    def _batches(self, texts: list[TokenIds]) -> Iterator[_Batch]:
        """Divide the texts into device calls.

        The texts are ordered by length, the longest first, and each batch is as long as its longest text. Of all ways
        to divide that order into batches and single texts, the cheapest is taken; padding and calls are counted.
        """
        order = sorted(range(len(texts)), key=lambda member: -len(texts[member].ids))
        shapes = [*self.of_shape]  # more may join meanwhile
        covering = sorted(length for rows, length in shapes if rows == 1)
        lengths = [next(n for n in covering if n >= len(texts[member].ids)) for member in order]
        most = {length: max(rows for rows, of in shapes if of == length) for length in covering}
        costs = [0] * (len(order) + 1)  # of all texts from each one on
        rows_from = [1] * len(order)  # rows of the call that begins at each text
        for at in reversed(range(len(order))):
            ways = {
                rows: self._call + rows * lengths[at] + costs[min(at + rows, len(order))]
                for rows in (1, most[lengths[at]])
            }
            rows_from[at] = min(ways, key=ways.__getitem__)
            costs[at] = ways[rows_from[at]]
        at = 0
        while at < len(order):
            rows = rows_from[at]
            yield order[at : at + rows], rows, lengths[at]
            at += rows
