"""Many texts: judged piece by piece, counted while they come, and written as a CSV file that no spreadsheet runs."""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO

from hfjax_app.errors import HfjaxError, RequestRejected
from hfjax_app.limits import SENTIMENT_MAX_CHARACTERS
from hfjax_app.sentiment.classifier import SentimentClassifier
from hfjax_app.sentiment.prediction import Verdict
from hfjax_app.sentiment.table import Cell
from hfjax_app.validation import checked_text

UNJUDGED = "(not judged)"
NO_LABEL = "(none)"
BINS = 10
# Texts that are read, tokenized and judged together: memory for them doesn't grow with the list, and whoever cancels
# waits for one of these pieces at most.
_PIECE_ROWS, _PIECE_CHARACTERS = 256, 100_000

# What a spreadsheet may take for a formula, also in its full-width forms (OWASP, "CSV Injection"): where a cell begins,
# and behind what separates cells where the spreadsheet's country has no commas there, also in quotes. In that place a
# sign counts only where a call or a command follows; it is more often a dash, or of a face ;-)
_FORMULA = re.compile(r"\A(?= *[=+\-@\t\r\n＝＋－＠])|(?<=[;\t\r\n])(?=[ \x22]*(?:[=@＝＠]|[+\-＋－][^;\t\r\n]*[(|]))")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a list with its verdict; None where it could not be judged, and the note says why.

    Args:
        number: from 1.
        text: as it came.
        verdict: what the classifier says.
        note: what one should know: empty, cut, ragged ...
    """

    number: int
    text: str
    verdict: Verdict | None
    note: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """For counting and filtering; UNJUDGED or NO_LABEL where there is no label."""
        if self.verdict is None:
            return (UNJUDGED,)
        return self.verdict.labels or (NO_LABEL,)


@dataclass(kw_only=True, eq=False)
class Results:
    """The rows judged so far, in order, and their counts."""

    labels: tuple[str, ...]
    rows: list[Row] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    confidence: list[int] = field(default_factory=lambda: [0] * BINS)

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.rows.append(row)
            self.counts.update(row.labels)
            if row.verdict is not None:
                self.confidence[min(int(row.verdict.probability * BINS), BINS - 1)] += 1

    def of(self, label: str | None) -> Iterator[Row]:
        """The rows of a label (or UNJUDGED, NO_LABEL); None: all."""
        return (row for row in self.rows if label is None or label in row.labels)

    def write_csv(self, file: IO[str], label: str | None = None) -> None:
        """Write rows of a label, or all, with a header. Texts and names are escaped against formulas."""
        writer = csv.writer(file)
        writer.writerow(["row", "text", "label", "probability", "note", *map(harmless, self.labels)])
        for row in self.of(label):
            verdict = row.verdict
            if verdict is None:
                facts, scores = ["", ""], [""] * len(self.labels)
            else:
                facts = [harmless("; ".join(verdict.labels)), f"{verdict.probability:.6f}"]
                scores = [f"{score:.6f}" for score in verdict.scores.values()]
            writer.writerow([row.number, harmless(row.text), *facts, harmless(row.note), *scores])

    def save_csv(self, path: Path, label: str | None = None) -> Path:
        """`write_csv` into a file in UTF-8 with a mark, which Excel asks for."""
        with path.open("w", encoding="utf-8-sig", newline="") as file:
            self.write_csv(file, label)
        return path


def harmless(cell: str) -> str:
    """The cell with an apostrophe before whatever a spreadsheet could take for a formula."""
    return _FORMULA.sub("'", cell)


def judged(classifier: SentimentClassifier, cells: Iterable[Cell]) -> Iterator[list[Row]]:
    """Rows with their verdicts, a piece at a time, in order.

    Reads the cells only as far as it has judged, so that it can be stopped after each piece and needs no more memory
    for a longer list. A row that can't be judged has a note instead of a verdict; none stops the others.
    """
    numbered = enumerate(cells, 1)
    while piece := list(_piece(numbered)):
        yield _judged(classifier, piece)


def _piece(cells: Iterator[tuple[int, Cell]]) -> Iterator[tuple[int, Cell]]:
    characters = 0
    for number, cell in islice(cells, _PIECE_ROWS):
        yield number, cell
        characters += min(len(cell.text), SENTIMENT_MAX_CHARACTERS)
        if characters >= _PIECE_CHARACTERS:
            return


def _judged(classifier: SentimentClassifier, piece: list[tuple[int, Cell]]) -> list[Row]:
    notes = [cell.note or _fault(cell.text) for _, cell in piece]
    good = [at for at, (_, cell) in enumerate(piece) if not _fault(cell.text)]
    texts = [piece[at][1].text[:SENTIMENT_MAX_CHARACTERS] for at in good]
    verdicts: dict[int, Verdict] = {}
    for at, text, verdict in zip(good, texts, classifier.judge(texts), strict=True):
        shortened = len(text) < len(piece[at][1].text)
        if isinstance(verdict, Exception):
            reason = verdict if isinstance(verdict, HfjaxError) else f"this text failed: {type(verdict).__name__}"
            notes[at] = _joined(notes[at], str(reason))
            continue
        verdicts[at] = verdict
        if verdict.cut:
            notes[at] = _joined(notes[at], f"first {classifier.token_limit} tokens used")
        elif shortened:
            notes[at] = _joined(notes[at], f"first {SENTIMENT_MAX_CHARACTERS:,} characters used")
    return [
        Row(number=number, text=_whole(cell.text), verdict=verdicts.get(at), note=notes[at])
        for at, (number, cell) in enumerate(piece)
    ]


def _fault(text: str) -> str:
    """Why a text can't be judged, or nothing. Too long is no fault here: such a text is cut."""
    if not text.strip():
        return "empty"
    try:
        checked_text(text[:SENTIMENT_MAX_CHARACTERS], "text", SENTIMENT_MAX_CHARACTERS)
    except RequestRejected as error:
        return str(error)
    return ""


def _whole(text: str) -> str:
    """The text with a replacement character for each half of a surrogate pair, which nothing could encode."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)
