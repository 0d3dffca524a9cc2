"""What each word contributed to a label's logit, by integrated gradients.

Sundararajan, Taly, Yan: "Axiomatic Attribution for Deep Networks" (arXiv:1703.01365), equation 1, over the word
embeddings, from a text of padding to the text itself. Special tokens stay, so they contribute nothing.
"""

import bisect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from hfjax_app.errors import ModelUnavailable
from hfjax_app.line import FairLine
from hfjax_app.runtime.module import Shapes, Weights, pure_function
from hfjax_app.runtime.parallel_calls import Calls
from hfjax_app.runtime.programs import Program
from hfjax_app.runtime.warm_up import ProgramSpec
from hfjax_app.sentiment.encoding import Encoder, Lengths
from hfjax_app.sentiment.interface import Explanation
from hfjax_app.sentiment.padded_forward import logits_of

TOLERANCE = 0.018  # share of the logit's change; stretches of the path are divided until it is met. 2 % is promised
_LOGIT_FLOOR = 0.01  # the tolerance is a share of at least this change
_MOST_STRETCHES = 64
_LEAST_PART = 0.02  # the smallest part of a stretch that is divided, as a share of it
_TOKENS = 1024  # tokens of one device call, over all points of the path
_FEWEST_POINTS, _MOST_POINTS = 8, 32
_LENGTHS = (16, 32, 128, 512)  # most sentences have at most 16 tokens

# An ideograph or kana is a word of its own. Other words stand between white space and punctuation; apostrophes and
# hyphens inside a word belong to it.
_SINGLE = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_MARKS = r"!-/:-@\[-^`{-~¡¿«»\u2000-\u206f\u3000-\u303f\uff00-\uff0f"
_INNER = rf"[^\s{_SINGLE}{_MARKS}]+"
_WORD = re.compile(rf"[{_SINGLE}]|{_INNER}(?:['’-]{_INNER})*|[{_MARKS}]")


class Explainer:
    """The gradient of a classifier along the path, as programs for a few lengths.

    Args:
        model: the torch classifier.
        encoder: tokenizes texts; `Lengths` is enough for planned programs.
        weights: the model's, on the device; for planned programs their shapes.
        line: of device calls, single texts before lists.
        calls: runs both parts of a divided stretch in parallel.
    """

    def __init__(
        self,
        model: Any,
        encoder: Encoder | Lengths,
        weights: Weights | Shapes,
        line: FairLine,
        calls: Calls,
    ):
        self._encoder, self._weights, self._line, self._calls = encoder, weights, line, calls
        self._labels = model.config.num_labels
        self._function = _path_function(model)
        lengths = sorted({encoder.fitting(min(tokens, encoder.token_limit)) for tokens in _LENGTHS})
        self._points = {length: min(max(_FEWEST_POINTS, _TOKENS // length), _MOST_POINTS) for length in lengths}
        self._programs: dict[int, Program] = {}  # in use, by length

    def specs(self) -> list[ProgramSpec]:
        """The programs; the first one explains texts of every length."""
        *shorter, longest = self._points
        return [self._spec(length) for length in (longest, *shorter)]

    def _spec(self, length: int) -> ProgramSpec:
        arguments = (self._weights, *self._padding(length))

        def join(program: Program) -> None:
            with self._line.hold(urgent=False):
                jax.block_until_ready(program(*arguments))
            self._programs[length] = program

        name = f"explain_{self._points[length]}x{length}"
        return ProgramSpec(name=name, function=self._function, args=arguments, join=join)

    def _padding(self, length: int) -> tuple[np.ndarray, ...]:
        """A program's arguments besides the weights, for an empty text."""
        row, path = np.zeros(length, np.int32), np.zeros(self._points[length], np.float32)
        return row, row, np.ones_like(row), path, path, np.zeros(self._labels, np.float32)

    def explain(self, text: str, target: int, label: str, *, urgent: bool) -> Explanation:
        """What each word contributed to one label's logit.

        Args:
            text: already checked.
            target: the label's index.
            label: its name.
            urgent: whether to go before calls that are not urgent.

        Raises:
            ModelUnavailable: the programs are still compiled, or the text has more tokens than the longest of them.
        """
        assert isinstance(self._encoder, Encoder)  # planned programs explain nothing
        traced = self._encoder.trace(text)
        if len(traced.ids) > max(self._points):
            raise ModelUnavailable(
                f"the words of a text of {len(traced.ids):,} tokens are not explained: of {max(self._points)} at most"
            )
        length = min((length for length in [*self._programs] if length >= len(traced.ids)), default=None)
        if length is None:
            raise ModelUnavailable("the program that explains texts is still being compiled; try again in a moment")
        [ids], [mask] = self._encoder.padded([traced.ids], 1, length)
        place = self._encoder.place(len(traced.ids), length)
        baseline = np.maximum(ids, 0)  # padding may be no token
        baseline[place][[at for at, span in enumerate(traced.spans) if span is not None]] = self._encoder.blank
        wanted = np.zeros(self._labels, np.float32)
        wanted[target] = 1

        def stretch(ends: tuple[float, float]) -> _Stretch:
            points, quadrature = _quadrature(self._points[length], *ends)
            with self._line.hold(urgent=urgent):
                shares, logits = self._programs[length](self._weights, ids, baseline, mask, points, quadrature, wanted)
                arrays = [np.asarray(array, np.float64) for array in (points, shares, logits)]
            return _Stretch(*ends, *arrays)

        stretches = _integrate(lambda path: self._calls.each(stretch, path))
        shares = np.sum([part.shares for part in stretches], axis=0)
        return Explanation(
            label=label,
            pieces=merged(text, traced.spans, shares[place].tolist()),
            logit=next(part.logits[-1] for part in stretches if part.stop == 1),
            baseline=next(part.logits[0] for part in stretches if part.start == 0),
        )


@dataclass(frozen=True, eq=False)
class _Stretch:
    """A part of the path.

    Attributes:
        start, stop: its ends, from 0 to 1.
        points: where the logit was computed, float64 [points], in order; both ends are among them.
        shares: each token's share of the logit's change, float64 [length].
        logits: at the points.
    """

    start: float
    stop: float
    points: np.ndarray
    shares: np.ndarray
    logits: np.ndarray

    @property
    def error(self) -> float:
        return float(abs(self.shares.sum() - (self.logits[-1] - self.logits[0])))

    @property
    def middle(self) -> float:
        """The point before which half of the logit's curvature lies: changes of slope times the points' distances.

        A sharp bend then lies at an end of both parts, where the quadrature's points are dense.
        """
        gaps = np.diff(self.points)
        between = self.points[:-1] + gaps / 2
        with np.errstate(divide="ignore", invalid="ignore"):  # points may coincide in float32
            slopes = np.diff(self.logits) / gaps
            behind = np.cumsum([0, *(np.abs(np.diff(slopes)) * np.diff(between))])
        if not 0 < behind[-1] < np.inf:
            return (self.start + self.stop) / 2
        least = _LEAST_PART * (self.stop - self.start)
        return float(np.clip(np.interp(behind[-1] / 2, behind, between), self.start + least, self.stop - least))


def _path_function(model: Any) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Shares [length] and logits [points] of points on the path from one row of ids to another.

    Every token has a gate between its embedding in the baseline (0) and its own (1). The derivative with respect to a
    gate is the gradient times the difference of the embeddings, summed: the integrand of integrated gradients.
    """

    def gated(
        model: Any, ids: torch.Tensor, baseline: torch.Tensor, mask: torch.Tensor, gates: torch.Tensor
    ) -> torch.Tensor:
        def mixed(module: torch.nn.Module, inputs: Any, embeddings: torch.Tensor) -> torch.Tensor:
            shape = inputs[0].shape  # [1, length], or as XLNet has it, [length, 1]
            start: torch.Tensor = module.forward(baseline.reshape(shape))
            return start + gates.reshape(*shape, 1) * (embeddings - start)

        hook = model.get_input_embeddings().register_forward_hook(mixed)
        try:
            return logits_of(model, ids, mask)[0]
        finally:
            hook.remove()

    function = pure_function(model, gated)

    def path(
        weights: Weights,
        ids: jax.Array,
        baseline: jax.Array,
        mask: jax.Array,
        points: jax.Array,
        quadrature: jax.Array,
        wanted: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        def logit(gates: jax.Array) -> jax.Array:
            logits: jax.Array = function(weights, ids[None], baseline[None], mask[None], gates)
            return (logits * wanted).sum()

        def at(point: jax.Array) -> tuple[jax.Array, jax.Array]:
            return jax.value_and_grad(logit)(jnp.full(ids.shape, point))

        logits, gradients = jax.vmap(at)(points)
        return quadrature @ gradients, logits

    return path


def _quadrature(points: int, start: float, stop: float) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre's points and weights on a stretch, float32 [points]. Both ends are included with weight 0."""
    nodes, weights = np.polynomial.legendre.leggauss(points - 2)
    half = (stop - start) / 2
    inner = start + half * (nodes + 1)
    return np.array([start, *inner, stop], np.float32), np.array([0, *(half * weights), 0], np.float32)


def _integrate(along: Callable[[Sequence[tuple[float, float]]], list[_Stretch]]) -> list[_Stretch]:
    """Integrate the path, dividing the stretch with the largest error until the total error is within TOLERANCE.

    A stretch's error is known without its exact value: its shares must sum to the change of the logit.
    """
    [whole] = along([(0.0, 1.0)])
    allowed = TOLERANCE * max(abs(whole.logits[-1] - whole.logits[0]), _LOGIT_FLOOR)
    stretches = [whole]
    while sum(part.error for part in stretches) > allowed and len(stretches) < _MOST_STRETCHES:
        worst = max(stretches, key=lambda part: part.error)
        stretches.remove(worst)
        middle = worst.middle
        stretches += along([(worst.start, middle), (middle, worst.stop)])
    return stretches


def merged(text: str, spans: list[tuple[int, int] | None], shares: list[float]) -> tuple[tuple[str, float | None], ...]:
    """Tokens' shares summed to words. The pieces include the text between words, so they spell the whole text.

    Args:
        text: the text that was tokenized.
        spans: the characters of each token; None for special tokens.
        shares: of each token; those of special tokens are 0.
    """
    words = [match.span() for match in _WORD.finditer(text)] or [(0, len(text))]
    sums = [0.0] * len(words)
    read = 0
    for span, share in zip(spans, shares, strict=False):  # the shares may go on with the padding's
        if span is not None:
            sums[_nearest(words, span)] += share
            read = max(read, span[1])
    pieces: list[tuple[str, float | None]] = []
    at = 0
    for (start, stop), value in zip(words, sums, strict=True):
        if start > at:
            pieces.append((text[at:start], None))
        pieces.append((text[start:stop], value if start < read else None))
        at = stop
    if at < len(text):
        pieces.append((text[at:], None))
    return tuple(pieces)


def _nearest(words: list[tuple[int, int]], span: tuple[int, int]) -> int:
    """The index of the word that shares most characters with a token, else of the nearest one."""
    near = bisect.bisect_right(words, span[0], key=lambda word: word[0])
    candidates = range(max(0, near - 1), min(len(words), bisect.bisect_left(words, span[1], key=lambda w: w[0]) + 1))
    return max(candidates, key=lambda at: min(words[at][1], span[1]) - max(words[at][0], span[0]))
