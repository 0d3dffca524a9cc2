"""The confusion matrix, by hand."""

import pytest

from hfjax_app.sentiment import Prediction
from hfjax_app.sentiment.agreement import compare
from hfjax_app.sentiment.bulk import Results, Row

LABELS = ("negative", "neutral", "positive")


def results(*pairs: tuple[str, str | None]) -> Results:
    """Rows with the file's label and the classifier's; None: the row could not be classified."""
    made = Results(labels=LABELS, columns=("text", "label"))
    for number, (given, said) in enumerate(pairs, 1):
        scores = {label: 0.9 if label == said else 0.05 for label in LABELS}
        prediction = None if said is None else Prediction(scores=scores)
        made.add([Row(number=number, text="a", prediction=prediction, cells=("a", given))])
    return made


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
    assert list(compared.matrix.index) == list(compared.matrix.columns) == list(LABELS)
    assert compared.matrix.to_numpy().tolist() == [[1, 1, 0], [0, 0, 0], [1, 0, 2]]
    assert (compared.texts, compared.right) == (5, 3)
    assert [compared.recall(label) for label in LABELS] == [0.5, None, pytest.approx(2 / 3)]
    assert [compared.precision(label) for label in LABELS] == [0.5, 0.0, 1.0]
    assert compared.others == {"mixed": 1, "": 1}
    assert compared.numbers == {}
    assert compared.given == {1: "positive", 2: "positive", 3: "positive", 4: "negative", 5: "negative", 8: "positive"}


def test_rows_that_differ() -> None:
    made = results(("pos", "positive"), ("pos", "negative"), ("mixed", "positive"), ("pos", None))
    compared = compare(made, "label")
    assert [compared.differs(row) for row in made.rows] == [False, True, False, False]


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
