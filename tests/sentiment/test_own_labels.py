"""What a file calls a classifier's labels, the column that has them, and the confusion matrix by hand."""

from pathlib import Path

import pytest

from hfjax_app.sentiment import Prediction
from hfjax_app.sentiment.bulk import Results, Row
from hfjax_app.sentiment.own_labels import LabelNames, compare
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
    assert compared.numbers == {}
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


def test_numbers_are_told() -> None:
    """A file whose labels are numbers of its own would be misread silently; labels that nothing has are left out."""
    compared = compare(results(("0", "negative"), ("1", "positive"), ("1.0", "positive")), "label")
    assert compared.numbers == {"0": "negative", "1": "neutral", "1.0": "neutral"}
    assert compared.matrix.to_numpy().tolist() == [[1, 0, 0], [0, 0, 2], [0, 0, 0]]
    compared = compare(results(("0", "negative")), "label")
    assert compared.matrix.to_numpy().tolist() == [[1]]


def test_no_label_at_all() -> None:
    compared = compare(results(("good", "positive"), ("bad", "negative")), "label")
    assert (compared.texts, compared.right) == (0, 0)
    assert compared.others == {"good": 1, "bad": 1}
