"""What a file calls a classifier's labels, and the column that has them."""

from pathlib import Path

import pytest

from hfjax_app.sentiment.label_names import LabelNames
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
