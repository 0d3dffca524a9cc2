"""Integrated gradients on the embedded model: complete, with the signs that a reader expects, and merged to words."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from hfjax_app.embedded import resolve
from hfjax_app.errors import RequestRejected
from hfjax_app.sentiment import SentimentClassifier
from hfjax_app.sentiment.explanation import _integrate, _quadrature, _Stretch, merged

LIMIT = 64  # tokens; the app's 512 are many programs more

SENTENCES = [
    "I loved every minute of it.",
    "The soup was cold and the waiter never came back.",
    "The train leaves at nine.",
    "A great cast, but a dull story.",
    "Not bad at all!",
    "Zxqv brmpf, これは何ですか 🙂",
    "We didn't like the well-known ending; it's unwatchable.",
]


@pytest.fixture(scope="module")
def in_torch() -> Any:
    return AutoModelForSequenceClassification.from_pretrained(resolve("sentiment")).eval()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(resolve("sentiment"), model_max_length=LIMIT)


@pytest.fixture(scope="module")
def embedded(in_torch: Any, tokenizer: Any, quick_compiler: None) -> Iterator[SentimentClassifier]:
    """The model that comes with the app, for short texts, one by one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hfjax_app.sentiment.programs.FEWEST_ROWS", 1000)  # no programs of batches
        classifier = SentimentClassifier(in_torch, tokenizer)
    yield classifier
    classifier.stop()


@pytest.mark.parametrize("text", [*SENTENCES, "The food was terrible. " * 12])
def test_contributions_sum_to_the_change_of_the_logit(
    embedded: SentimentClassifier, in_torch: Any, tokenizer: Any, text: str
) -> None:
    """Completeness (an axiom of integrated gradients) within 2 %; the logits equal torch's."""
    for label in embedded.labels:
        explanation = embedded.explain(text, label)
        assert explanation.error < 0.02, label
        assert "".join(piece for piece, _ in explanation.pieces) == text
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    assert ids.shape[1] <= LIMIT
    padding = torch.full_like(ids, tokenizer.pad_token_id)
    padding[0, [0, -1]] = ids[0, [0, -1]]
    with torch.no_grad():
        logits = [
            in_torch(input_ids=rows, attention_mask=torch.ones_like(rows)).logits[0, -1] for rows in (ids, padding)
        ]
    assert label == embedded.labels[-1]
    assert [explanation.logit, explanation.baseline] == pytest.approx([float(logit) for logit in logits], abs=1e-3)


def test_the_words_that_decide(embedded: SentimentClassifier) -> None:
    def most(text: str, label: str | None = None) -> str:
        pieces = embedded.explain(text, label).pieces
        return max((piece for piece in pieces if piece[1] is not None), key=lambda piece: piece[1])[0]

    assert most("I loved every minute of it.") == "loved"
    assert most("The hotel by the station was awful.") == "awful"
    assert embedded.explain("I loved it").label == "positive"
    values = dict(embedded.explain("I loved it", "negative").pieces)
    assert values["loved"] < 0


def test_explaining_compiles_nothing(embedded: SentimentClassifier, compilations) -> None:
    """Of a text for each program, the last one is cut."""
    with compilations() as seen:
        for text in ("Short.", "Twenty words and then some. " * 4, "Cut at the limit. " * 40):
            embedded.explain(text)
    assert seen == []


def test_what_was_cut_has_no_contribution(classifier: SentimentClassifier) -> None:
    text = " ".join(["w1"] * 80)
    values = [value for piece, value in classifier.explain(text).pieces if piece.strip()]
    assert [value is not None for value in values] == [True] * 62 + [False] * 18


def test_a_label_that_does_not_exist(classifier: SentimentClassifier) -> None:
    with pytest.raises(RequestRejected, match="label 'angry': must be one of negative, neutral, positive"):
        classifier.explain("w1", "angry")
    with pytest.raises(RequestRejected, match="empty"):
        classifier.explain(" ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's well-known.", ["It's", "well-known", "."]),
        ("これは", ["こ", "れ", "は"]),
        ("«Да», x!", ["«", "Да", "»", ",", "x", "!"]),
        ("यह फिल्म", ["यह", "फिल्म"]),
        (" a\n b ", ["a", "b"]),
        ("🙂👍 ok", ["🙂👍", "ok"]),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    """Words of several scripts; the pieces spell the text."""
    pieces = merged(text, [(0, len(text))], [1.0])
    assert [piece for piece, value in pieces if value is not None] == words
    assert "".join(piece for piece, _ in pieces) == text


def test_sub_words_are_summed() -> None:
    """By hand: [CLS] un watch able ! [SEP], one token on a space, and padding at the end."""
    spans = [None, (0, 2), (2, 7), (7, 11), (11, 12), (12, 13), (13, 16), None]
    shares = [0.0, 1.0, 2.0, 4.0, -1.0, 0.5, 3.0, 0.0, 0.0, 0.0]
    pieces = merged("unwatchable! yes", spans, shares)
    assert pieces[0] == ("unwatchable", 7.0)
    assert pieces[-1][0] == "yes"
    assert np.sum([value or 0.0 for _, value in pieces]) == pytest.approx(sum(shares))


@pytest.mark.parametrize("place", [0.11, 0.37, 0.62, 0.9])
def test_a_sharp_bend_of_the_path_is_found_in_few_calls(place: float) -> None:
    """The path is divided where the logit bends; halving it would take one call for each halving."""
    asked = []

    def logit(at: np.ndarray) -> np.ndarray:
        return (1 + np.tanh((at - place) / 0.002)) / 2

    def along(path: list[tuple[float, float]]) -> list[_Stretch]:
        asked.extend(path)
        made = []
        for start, stop in path:
            points, weights = (np.float64(array) for array in _quadrature(32, start, stop))
            values = logit(points)
            made.append(_Stretch(start, stop, points, weights * values * (1 - values) / 0.001, values))
        return made

    stretches = _integrate(along)
    assert sum(part.shares.sum() for part in stretches) == pytest.approx(1, abs=0.02)
    assert {part.start for part in stretches} == {0.0} | {part.stop for part in stretches if part.stop < 1}
    assert len(asked) <= 7, asked
