"""What a file calls a classifier's labels, the column that has them, and the confusion matrix by hand."""

import random
from pathlib import Path

import pytest

from hfjax_app.sentiment import Prediction
from hfjax_app.sentiment.bulk import Results, Row
from hfjax_app.sentiment.own_labels import NAMES_ONLY, LabelNames, compare, doubted, readings
from hfjax_app.sentiment.table import opened

THREE = ["negative", "neutral", "positive"]


@pytest.mark.parametrize(
    ("labels", "text", "label"),
    [
        (THREE, " Positive", "positive"),
        (THREE, "POS", "positive"),
        (THREE, "neu", "neutral"),
        (THREE, "ne", None),
        (THREE, "n", None),
        (THREE, "2", "positive"),
        (THREE, "2.0", "positive"),
        (THREE, "3", None),
        (THREE, "-1", None),
        (THREE, "mixed", None),
        (THREE, "", None),
        (["LABEL_0", "LABEL_1"], "label 1", "LABEL_1"),
        (["LABEL_0", "LABEL_1"], "1", "LABEL_1"),
        (["1 star", "2 stars", "3 stars"], "1", "1 star"),
        (["1 star", "2 stars", "3 stars"], "3", "3 stars"),
        (["very-bad", "very-good"], "Very_Good", "very-good"),
        (["very-bad", "very-good"], "very", None),
        (["happy", "happy or sad"], "happy", "happy"),
        (["straße", "weg"], "STRASSE", "straße"),
        (THREE, "9" * 10_000, None),
    ],
)
def test_a_label_is_found(labels: list[str], text: str, label: str | None) -> None:
    assert LabelNames(labels).find(text) == label


@pytest.mark.parametrize(
    ("content", "column"),
    [
        ("text,id,label\nI loved it,0,1\nAwful,1,0\n", "label"),
        ("text,id\nI loved it,0\nAwful,1\n", None),
        ("text,verdict\nI loved it,pos\nAwful,Negative\nok,\n", "verdict"),
        ("text,verdict,sentiment\nI loved it,pos,positive\nAwful,neg,negative\n", "sentiment"),
        ("text,label\nI loved it,spam\nAwful,ham\n", None),
        ("text\nI loved it\nAwful\n", None),
    ],
)
def test_the_column_with_labels(tmp_path: Path, content: str, column: str | None) -> None:
    """Numbers are labels only where the column is called so."""
    path = tmp_path / "a.csv"
    path.write_text(content)
    assert LabelNames(THREE).likely_column(opened(path), "text") == column


def results(*pairs: tuple[str, str | None]) -> Results:
    """Rows with the file's label and the classifier's; None: the row could not be classified."""
    rows = Results(labels=tuple(THREE), columns=("text", "label"))
    for number, (in_file, by_model) in enumerate(pairs, 1):
        scores = {label: 0.9 if label == by_model else 0.05 for label in THREE}
        prediction = None if by_model is None else Prediction(scores=scores)
        rows.add([Row(number=number, text="a", prediction=prediction, cells=("a", in_file))])
    return rows


def test_a_matrix() -> None:
    compared = compare(
        results(
            ("positive", "positive"),
            ("POS", "positive"),
            ("pos", "negative"),
            ("negative", "negative"),
            ("Negative ", "neutral"),
            ("mixed", "positive"),
            ("", "positive"),
            ("positive", None),
        ),
        "label",
    )
    assert list(compared.matrix.index) == list(compared.matrix.columns) == THREE
    assert compared.matrix.to_numpy().tolist() == [[1, 1, 0], [0, 0, 0], [1, 0, 2]]
    assert (compared.texts, compared.right) == (5, 3)
    assert [compared.recall(label) for label in THREE] == [0.5, None, pytest.approx(2 / 3)]
    assert [compared.precision(label) for label in THREE] == [0.5, 0.0, 1.0]
    assert compared.others == {"mixed": 1, "": 1}
    assert compared.reading == NAMES_ONLY
    assert compared.of_rows == {
        1: "positive",
        2: "positive",
        3: "positive",
        4: "negative",
        5: "negative",
        8: "positive",
    }


def test_rows_that_differ() -> None:
    rows = results(("pos", "positive"), ("pos", "negative"), ("mixed", "positive"), ("pos", None))
    compared = compare(rows, "label")
    assert [compared.differs(row) for row in rows.rows] == [False, True, False, False]


STARS = ["1 star", "2 stars", "3 stars", "4 stars", "5 stars"]
NEGATIVE, NEUTRAL, POSITIVE = THREE


@pytest.mark.parametrize(
    ("labels", "values", "meant"),
    [
        (THREE, ["-1", "0", "1"], THREE),
        (THREE, ["-1.0", "1.0"], [NEGATIVE, POSITIVE]),
        (THREE, ["1", "2", "3", "4", "5"], [NEGATIVE, NEGATIVE, NEUTRAL, POSITIVE, POSITIVE]),
        (THREE, ["-2", "-1", "0", "+1", "+2"], [NEGATIVE, NEGATIVE, NEUTRAL, POSITIVE, POSITIVE]),
        (THREE, ["0", "2", "4"], THREE),
        (THREE, ["1", "2", "3"], THREE),
        (THREE, ["0", "1", "2"], THREE),  # as its ids too
        (THREE, [str(at) for at in range(1, 11)], [NEGATIVE] * 4 + [NEUTRAL] * 2 + [POSITIVE] * 4),
        ([NEGATIVE, POSITIVE], ["0", "1"], [NEGATIVE, POSITIVE]),
        ([NEGATIVE, POSITIVE], ["-1", "1"], [NEGATIVE, POSITIVE]),
        ([NEGATIVE, POSITIVE], ["1", "2", "3", "4", "5"], [NEGATIVE, NEGATIVE, None, POSITIVE, POSITIVE]),
        ([POSITIVE, NEGATIVE], ["-1", "1"], [NEGATIVE, POSITIVE]),
        (["Very bad", *THREE, "Very good"], ["-2", "0", "2"], ["Very bad", "neutral", "Very good"]),
        (STARS, ["1", "3", "5"], ["1 star", "3 stars", "5 stars"]),
        (STARS, ["0", "4"], ["1 star", "5 stars"]),
        (STARS, ["-1", "0", "1"], ["1 star", "3 stars", "5 stars"]),
        (["LABEL_0", "LABEL_1"], ["0", "1"], ["LABEL_0", "LABEL_1"]),
        (["sport", "news"], ["0", "1"], ["sport", "news"]),
    ],
)  # fmt: skip
def test_numbers_of_any_scale_are_read_where_that_is_certain(
    labels: list[str], values: list[str], meant: list[str | None]
) -> None:
    """0 and 1 were ids, and numbers below 0 or above the last id no labels."""
    found, is_certain = readings(labels, [*values, " ", "mixed"])
    assert is_certain
    assert [found[0].labels.get(value) for value in values] == meant


@pytest.mark.parametrize(
    ("labels", "values", "meanings"),
    [
        (THREE, ["0", "1"], [[NEGATIVE, POSITIVE], [NEGATIVE, NEUTRAL], [POSITIVE, NEGATIVE]]),
        (THREE, ["1", "2"], [[NEGATIVE, POSITIVE], [NEUTRAL, POSITIVE], [POSITIVE, NEGATIVE]]),
        ([POSITIVE, NEUTRAL, NEGATIVE], ["0", "1", "2"], [THREE, THREE[::-1]]),
        (THREE, ["0.3", "-0.7"], [[POSITIVE, NEGATIVE], [NEGATIVE, POSITIVE]]),
        (THREE, ["0", "100"], [[NEGATIVE, POSITIVE], [POSITIVE, NEGATIVE]]),
        (THREE, ["7"], [[NEGATIVE], [POSITIVE]]),
        (["sport", "news"], ["0", "7"], []),
        (["joy", "anger", "fear"], ["-1", "1"], []),
    ],
)
def test_what_is_not_certain_is_not_guessed(labels: list[str], values: list[str], meanings: list[list[str]]) -> None:
    found, is_certain = readings(labels, values)
    assert not is_certain
    assert [[reading.labels[value] for value in values] for reading in found] == meanings


def test_any_values_have_readings() -> None:
    """Numbers of all sizes and what looks like some, beside labels of all kinds."""
    draw = random.Random(0)
    texts = [
        "",
        "-",
        "+",
        "1e9",
        "٣",
        "0x1",
        "1.5.2",
        "NaN",
        "inf",
        "9" * 10,
        "-0",
        "+0.0",
        "999999999",
        "-999999999.5",
    ]
    texts += [f"{draw.uniform(-9, 9):.2f}" for _ in range(9)] + [str(number) for number in range(-5, 12)]
    for labels in (THREE, THREE[::-1], STARS, ["LABEL_0", "LABEL_1"], ["one"], ["", "very", "very positive"]):
        for _ in range(300):
            values = draw.sample(texts, draw.randint(0, 6))
            found, is_certain = readings(labels, values)
            assert found or not is_certain
            assert all(label in labels for reading in found for label in reading.labels.values())
            assert all(value in values for reading in found for value in reading.labels)


def test_names_beside_numbers() -> None:
    assert readings(THREE, ["pos", "neg", ""]) == ([NAMES_ONLY], True)
    [reading, *_], _ = readings(THREE, ["-1", "0", "1", "pos"])
    compared = compare(
        results(("-1", "negative"), ("pos", "positive"), ("1", "positive"), ("2", "neutral")), "label", reading
    )
    assert (compared.texts, compared.right, compared.others) == (3, 3, {"2": 1})


def test_a_reading_that_the_classifier_contradicts_is_doubted() -> None:
    """1 is the worst in this file."""
    rows = results(*[("1", "negative"), ("-1", "positive")] * 5, ("0", "neutral"))
    found, is_certain = readings(THREE, ["1", "-1", "0"])
    assert is_certain
    assert doubted(rows, "label", found[0], found[1:])
    assert not doubted(rows, "label", found[-1], found[:-1])
    few = results(*[("1", "negative"), ("-1", "positive")] * 4)
    assert not doubted(few, "label", found[0], found[1:]), "a few texts say nothing"


@pytest.mark.parametrize(
    ("column", "values", "found"),
    [
        ("label", ["-1", "1"], True),
        ("rating", ["1", "5"], True),
        ("rating", ["1", "five"], False),
        ("id", ["-1", "1"], False),
    ],
)
def test_a_column_of_a_scale_is_found_by_its_name(tmp_path: Path, column: str, values: list[str], found: bool) -> None:
    path = tmp_path / "a.csv"
    path.write_text("".join([f"text,{column}\n", *(f"I loved it,{value}\n" for value in values)]))
    assert LabelNames(THREE).likely_column(opened(path), "text") == (column if found else None)


def test_no_label_at_all() -> None:
    compared = compare(results(("good", "positive"), ("bad", "negative")), "label")
    assert (compared.texts, compared.right) == (0, 0)
    assert compared.others == {"good": 1, "bad": 1}
