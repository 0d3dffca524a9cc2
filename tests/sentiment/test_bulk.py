"""Long lists: order, notes, cancelling, memory, counts, a CSV file without formulas, and the words that matter most."""

import csv
import gc
import io
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hfjax_app.limits import WORDS_MAX_TEXTS
from hfjax_app.sentiment import Explanation, Prediction, SentimentClassifier
from hfjax_app.sentiment.bulk import (
    NO_LABEL,
    UNCLASSIFIED,
    Results,
    Row,
    WordRanking,
    classify_rows,
    explain_each,
    harmless,
    sample,
)
from hfjax_app.sentiment.table import Cell, opened, pasted
from tests.sentiment.conftest import WORDS


def run(classifier: SentimentClassifier, cells: list[Cell]) -> Results:
    results = Results(labels=tuple(classifier.labels))
    for rows in classify_rows(classifier, cells):
        results.add(rows)
    return results


def test_every_row_keeps_its_place(classifier: SentimentClassifier) -> None:
    """Rows that can't be classified have a note, a cut one too; their neighbours get the scores that they get alone."""
    long = " ".join(WORDS * 2)
    cells = [
        Cell(text="w1 w2"),
        Cell(text=" "),
        Cell(text=long),
        Cell(text="w3", note="row has 3 cells instead of 2"),
        Cell(text="w\0"),
        Cell(text="w\ud800"),
        Cell(text="w1 " * 5000),
        Cell(text="w1" + " " * 70_000),
        Cell(text="", note="not a line of JSON"),
    ]
    results = run(classifier, cells)
    notes = [row.note for row in results.rows]
    assert [row.number for row in results.rows] == list(range(1, 10))
    assert notes[0] == ""
    assert notes[1] == "empty"
    assert notes[2] == notes[6] == "first 64 tokens used"
    assert notes[3] == "row has 3 cells instead of 2"
    assert "NUL" in notes[4]
    assert "surrogate" in notes[5]
    assert notes[7] == "first 60,000 characters used"
    assert notes[8] == "not a line of JSON"
    assert [row.prediction is None for row in results.rows] == [at in (1, 4, 5, 8) for at in range(9)]
    expected = classifier.classify(["w1 w2", long, "w3"])
    for at, scores in zip((0, 2, 3), expected, strict=True):
        assert results.rows[at].prediction.scores == pytest.approx(scores, abs=1e-6)
    assert results.counts[UNCLASSIFIED] == 4
    assert results.counts.total() == 9
    assert sum(results.confidence) == 5


def test_cells_are_read_no_further_than_they_are_classified(classifier: SentimentClassifier) -> None:
    """Memory is flat, and a caller that stops after a piece keeps its results."""
    read = 0

    def endless() -> Iterator[Cell]:
        nonlocal read
        while True:
            read += 1
            yield Cell(text=WORDS[read % 60])

    pieces = classify_rows(classifier, endless())
    first = next(pieces)
    assert read == len(first) == 256
    assert len(next(pieces)) == 256
    pieces.close()
    assert read == 512
    few = next(classify_rows(classifier, (Cell(text="w1 " * 3000) for _ in range(10**9))))
    assert len(few) < 20


def test_memory_is_flat(classifier: SentimentClassifier) -> None:
    """Cells and rows of a piece are given up when the next one is made, without a garbage collection."""
    held: list[weakref.ref[Any]] = []
    most = pieces = 0

    def read() -> Iterator[Cell]:
        for at in range(256 * 8):
            cell = Cell(text=WORDS[at % 60])
            held.append(weakref.ref(cell))
            yield cell

    gc.disable()
    try:
        for piece in classify_rows(classifier, read()):
            held.extend(map(weakref.ref, piece))
            pieces += 1
            most = max(most, sum(each() is not None for each in held))
    finally:
        gc.enable()
    assert pieces == 8
    assert 256 < most <= 4 * 256, "the cells and rows of two pieces"


def test_a_thousand_rows_of_a_file(classifier: SentimentClassifier, tmp_path: Path, compilations) -> None:
    """Every row is classified, in order, in a device call for each 32 rows; nothing compiles."""
    path = tmp_path / "reviews.csv"
    texts = ("w1 w2", "w40 w7 w3")
    with path.open("w") as file:
        file.write("id,review\n")
        for number in range(1024):
            file.write(f"{number},{texts[number % 3 > 0]}\n")
    one, other = (max(scores, key=scores.__getitem__) for scores in classifier.classify(list(texts)))
    assert one != other, "the comparison needs texts that differ"
    calls: list[tuple[int, int]] = []
    programs = {
        shape: lambda *args, shape=shape, program=program: calls.append(shape) or program(*args)
        for shape, program in classifier._programs.of_shape.items()
    }
    source = opened(path)
    with pytest.MonkeyPatch.context() as patch, compilations() as seen:
        patch.setattr(classifier._programs, "of_shape", programs)
        results = run(classifier, source.cells(source.likely))
    assert seen == []
    assert len(calls) == 1024 / 32
    assert [row.number for row in results.rows] == list(range(1, 1025))
    assert results.rows[0].prediction.top == one
    assert results.counts.total() == 1024
    assert results.counts == {one: 342, other: 682}


def test_several_labels_or_none() -> None:
    """Independent labels are counted one by one; a row without any is found as NO_LABEL."""
    scores = [{"angry": 0.9, "urgent": 0.7}, {"angry": 0.1, "urgent": 0.2}]
    rows = [
        Row(number=at, text="x", prediction=Prediction(scores=score, multi_label=True))
        for at, score in enumerate(scores, 1)
    ]
    results = Results(labels=("angry", "urgent"))
    results.add(rows)
    assert results.counts == {"angry": 1, "urgent": 1, NO_LABEL: 1}
    assert list(results.of("urgent")) == rows[:1]
    assert list(results.of(NO_LABEL)) == rows[1:]
    file = io.StringIO()
    results.write_csv(file)
    assert list(csv.reader(io.StringIO(file.getvalue())))[1] == [
        "1", "x", "angry; urgent", "0.900000", "", "0.900000", "0.700000",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("=1+1", "'=1+1"),
        ('=HYPERLINK("http://x","y")', '\'=HYPERLINK("http://x","y")'),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("  =1", "'  =1"),
        ("\t=1", "'\t'=1"),
        ("\r=1", "'\r'=1"),
        ("＝1+1", "'＝1+1"),
        ("a;=1+1;b", "a;'=1+1;b"),
        ("a\tb\n @SUM(A1)", "a\tb\n' @SUM(A1)"),
        ('a;"=1+1;b', "a;'\"=1+1;b"),
        ('a\t"" =cmd|x', 'a\t\'"" =cmd|x'),
        ("a;-cmd|'/C calc'!A0", "a;'-cmd|'/C calc'!A0"),
        ("Good ;-) and\n- warm\n- quiet", "Good ;-) and\n- warm\n- quiet"),
        ("a=1", "a=1"),
        ("fine", "fine"),
        ("", ""),
    ],
)
def test_cells_that_a_spreadsheet_would_run(cell: str, written: str) -> None:
    assert harmless(cell) == written


def test_the_download(classifier: SentimentClassifier, tmp_path: Path) -> None:
    """A spreadsheet reads the texts back, escaped, with commas, quotes and line ends in their cells."""
    lines = ['=cmd|"/c calc"!A1', 'w1, "w2"', "", "w3"]
    results = run(classifier, [*pasted("\n".join(lines)).cells("line"), Cell(text="w1\nw2\ud800")])
    path = results.save_csv(tmp_path / "all.csv")
    assert path.read_bytes().startswith(b"\xef\xbb\xbf")
    with path.open(encoding="utf-8-sig", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["row", "text", "label", "probability", "note", "negative", "neutral", "positive"]
    assert [row[1] for row in rows] == ['\'=cmd|"/c calc"!A1', 'w1, "w2"', "", "w3", "w1\nw2\ufffd"]
    assert rows[2][2:5] == ["", "", "empty"]
    assert sum(float(score) for score in rows[0][5:]) == pytest.approx(1, abs=1e-4)
    label = rows[0][2]
    assert float(rows[0][3]) == max(float(score) for score in rows[0][5:])
    with results.save_csv(tmp_path / "some.csv", results.of(label)).open(encoding="utf-8-sig", newline="") as file:
        assert {row[2] for row in list(csv.reader(file))[1:]} == {label}


def test_the_download_has_all_columns_of_the_upload(classifier: SentimentClassifier, tmp_path: Path) -> None:
    """It had the texts alone, so that nobody could tell whose they were."""
    path = tmp_path / "a.csv"
    path.write_text("id,text,=name,stars\n7,w1 w2,=1+1,5\n8,w3\n")
    source = opened(path)
    results = Results(labels=tuple(classifier.labels), columns=source.headers)
    for rows in classify_rows(classifier, source.cells("text")):
        results.add(rows)
    with results.save_csv(tmp_path / "all.csv").open(encoding="utf-8-sig", newline="") as file:
        header, *written = csv.reader(file)
    assert header[:8] == ["row", "id", "text", "'=name", "stars", "label", "probability", "note"]
    assert [row[:5] for row in written] == [["1", "7", "w1 w2", "'=1+1", "5"], ["2", "8", "w3", "", ""]]
    assert written[1][7] == "row has 2 cells instead of 4"


def explanation(*pieces: tuple[str, float | None]) -> Explanation:
    return Explanation(label="positive", pieces=pieces, logit=0.0, baseline=0.0)


def test_a_ranking_by_hand() -> None:
    """Case does not matter, a word's contributions in one text are summed, marks are no words, rare ones rank lower."""
    ranking = WordRanking()
    ranking.add(explanation(("Great", 1.0), (" ", None), ("great", 0.5), ("!", 9.0), ("🙂", 0.25), ("...", 5.0)))
    ranking.add(explanation(("great", 0.5), (" ", None), ("dull", -1.5), (" ", None), ("cut", None)))
    ranking.add(explanation(("great", 1.0)))
    words = ranking.strongest(10)
    assert [(word.text, word.mean, word.texts) for word in words] == [
        ("great", 1.0, 3),
        ("dull", -1.5, 1),
        ("🙂", 0.25, 1),
    ]
    assert [word.weight for word in words] == pytest.approx([0.6, -0.5, 0.25 / 3])
    assert ranking.texts == 3
    assert ranking.strongest(1) == words[:1]


def test_a_sample_is_bounded_and_the_same_each_time() -> None:
    good = Prediction(scores={"positive": 1.0})
    rows = [Row(number=at, text=f"w{at}", prediction=good if at % 2 else None) for at in range(3 * WORDS_MAX_TEXTS)]
    texts = sample(rows)
    assert len(texts) == len(set(texts)) == WORDS_MAX_TEXTS
    assert all(int(text[1:]) % 2 for text in texts)
    assert texts == sample(rows)
    assert sample(rows[:1]) == []


def test_it_compiles_nothing_and_lets_others_go_first(classifier: SentimentClassifier, compilations) -> None:
    """Words of a list are explained between the calls of single texts, which never wait for more than one."""
    texts = ["w1", "w7", "w40"]
    ranking = WordRanking()
    with compilations() as seen:
        for each in explain_each(classifier, texts, "positive"):
            ranking.add(each)
    assert seen == []
    assert ranking.texts == 3
    urgencies = []
    hold = classifier._line.hold

    def watched(*, urgent: bool):
        urgencies.append(urgent)
        return hold(urgent=urgent)

    classifier._line.hold = watched
    try:
        list(explain_each(classifier, texts[:1], "positive"))
        classifier.explain(texts[0], "positive")
    finally:
        classifier._line.hold = hold
    assert (urgencies[0], urgencies[-1]) == (False, True)
