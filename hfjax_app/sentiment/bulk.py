"""Many texts: classified piece by piece and counted on the way, written as a CSV file that is safe in spreadsheets, and
the words that matter most to a label in them."""

import csv
import random
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO

from hfjax_app.errors import HfjaxError, RequestRejected
from hfjax_app.limits import SENTIMENT_MAX_CHARACTERS, WORDS_MAX_TEXTS
from hfjax_app.sentiment.interface import Explanation, Prediction, SentimentModel
from hfjax_app.sentiment.table import Cell
from hfjax_app.validation import checked_text

UNCLASSIFIED = "(not judged)"
NO_LABEL = "(none)"
BINS = 10
# The most texts and characters that are read, tokenized and classified together. Memory does not grow with the list,
# and a user who cancels waits for one such piece at most.
_PIECE_ROWS, _PIECE_CHARACTERS = 256, 100_000
_RARE = 2  # texts without any contribution that are added to those with a word, so that chance finds rank lower

# What a spreadsheet may take for a formula, also in its full-width forms (OWASP, "CSV Injection"): at the start of a
# cell, and after a separator that spreadsheets in other countries use instead of the comma, also in quotes. After a
# separator, plus and minus count only before a call or a command: there they are more often a dash or part of a smiley.
_FORMULA = re.compile(r"\A(?= *[=+\-@\t\r\n＝＋－＠])|(?<=[;\t\r\n])(?=[ \x22]*(?:[=@＝＠]|[+\-＋－][^;\t\r\n]*[(|]))")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a list and its prediction.

    Args:
        number: from 1.
        text: as it came, with halves of surrogate pairs replaced.
        prediction: the classifier's; None where the row could not be classified. The note says why.
        note: a remark for the user: the text is empty or cut, the row is ragged ...
        cells: the texts of all columns of its table; empty for a plain line.
    """

    number: int
    text: str
    prediction: Prediction | None
    note: str = ""
    cells: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels to count and filter by; UNCLASSIFIED or NO_LABEL where there is none."""
        if self.prediction is None:
            return (UNCLASSIFIED,)
        return self.prediction.labels or (NO_LABEL,)


@dataclass(kw_only=True, eq=False)
class Results:
    """The rows so far, in order, and their counts.

    Args:
        labels: the classifier's.
        columns: names of the rows' cells; empty for plain lines.
        rows: in order.
        counts: rows of each label.
        confidence: rows by the probability of their likeliest label, in BINS equal ranges.
    """

    labels: tuple[str, ...]
    columns: tuple[str, ...] = ()
    rows: list[Row] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    confidence: list[int] = field(default_factory=lambda: [0] * BINS)

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.rows.append(row)
            self.counts.update(row.labels)
            if row.prediction is not None:
                self.confidence[min(int(row.prediction.probability * BINS), BINS - 1)] += 1

    def of(self, label: str | None) -> Iterator[Row]:
        """The rows with this label (or UNCLASSIFIED, NO_LABEL); None: all rows."""
        return (row for row in self.rows if label is None or label in row.labels)

    def write_csv(self, file: IO[str], rows: Iterable[Row] | None = None) -> None:
        """Write these rows, or all, below a header: the columns of the table (or the text), then the results.

        Texts and names are escaped against formulas.
        """
        writer = csv.writer(file)
        columns = self.columns or ("text",)
        writer.writerow(["row", *map(harmless, columns), "label", "probability", "note", *map(harmless, self.labels)])
        for row in self.rows if rows is None else rows:
            prediction = row.prediction
            if prediction is None:
                facts, scores = ["", ""], [""] * len(self.labels)
            else:
                facts = [harmless("; ".join(prediction.labels)), f"{prediction.probability:.6f}"]
                scores = [f"{score:.6f}" for score in prediction.scores.values()]
            cells = map(harmless, row.cells if self.columns else (row.text,))
            writer.writerow([row.number, *cells, *facts, harmless(row.note), *scores])

    def save_csv(self, path: Path, rows: Iterable[Row] | None = None) -> Path:
        """`write_csv` to a file in UTF-8 with a byte order mark, which Excel needs."""
        with path.open("w", encoding="utf-8-sig", newline="") as file:
            self.write_csv(file, rows)
        return path


def harmless(cell: str) -> str:
    """The cell with an apostrophe before everything that a spreadsheet could take for a formula."""
    return _FORMULA.sub("'", cell)


def classify_rows(classifier: SentimentModel, cells: Iterable[Cell]) -> Iterator[list[Row]]:
    """Rows with their predictions, one piece at a time, in order.

    Each piece is read only when it is asked for, so the caller can stop after any piece, and memory does not grow with
    the list. A row that can't be classified has a note instead of a prediction and does not affect the others.
    """
    numbered = enumerate(cells, 1)
    while piece := list(_piece(numbered)):
        yield _classify_piece(classifier, piece)


def _piece(cells: Iterator[tuple[int, Cell]]) -> Iterator[tuple[int, Cell]]:
    characters = 0
    for number, cell in islice(cells, _PIECE_ROWS):
        yield number, cell
        characters += min(len(cell.text), SENTIMENT_MAX_CHARACTERS)
        if characters >= _PIECE_CHARACTERS:
            return


def _classify_piece(classifier: SentimentModel, piece: list[tuple[int, Cell]]) -> list[Row]:
    notes = [cell.note or _fault(cell.text) for _, cell in piece]
    good = [at for at, (_, cell) in enumerate(piece) if not _fault(cell.text)]
    texts = [piece[at][1].text[:SENTIMENT_MAX_CHARACTERS] for at in good]
    predictions: dict[int, Prediction] = {}
    for at, text, prediction in zip(good, texts, classifier.predict(texts), strict=True):
        shortened = len(text) < len(piece[at][1].text)
        if isinstance(prediction, Exception):
            is_ours = isinstance(prediction, HfjaxError)
            reason = str(prediction) if is_ours else f"this text failed: {type(prediction).__name__}"
            notes[at] = _joined(notes[at], reason)
            continue
        predictions[at] = prediction
        if prediction.cut:
            notes[at] = _joined(notes[at], f"first {classifier.token_limit} tokens used")
        elif shortened:
            notes[at] = _joined(notes[at], f"first {SENTIMENT_MAX_CHARACTERS:,} characters used")
    return [
        Row(
            number=number,
            text=_whole(cell.text),
            prediction=predictions.get(at),
            note=notes[at],
            cells=tuple(map(_whole, cell.row)),
        )
        for at, (number, cell) in enumerate(piece)
    ]


def _fault(text: str) -> str:
    """Why a text can't be classified, or "". A text that is too long is cut, so length is no reason."""
    if not text.strip():
        return "empty"
    try:
        checked_text(text[:SENTIMENT_MAX_CHARACTERS], "text", SENTIMENT_MAX_CHARACTERS)
    except RequestRejected as error:
        return str(error)
    return ""


def _whole(text: str) -> str:
    """The text with a replacement character for each half of a surrogate pair, which no encoding has."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word of some texts.

    Args:
        text: in lower case.
        mean: its contribution to the label's logit, the mean over the texts that have it.
        texts: how many have it.
    """

    text: str
    mean: float
    texts: int

    @property
    def weight(self) -> float:
        """The mean, less for a word that is rare."""
        return self.mean * self.texts / (self.texts + _RARE)


class WordRanking:
    """Sums of the contributions of each word, whatever its case. Punctuation is no word.

    Attributes:
        texts: how many explanations were added.
    """

    def __init__(self) -> None:
        self.texts = 0
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._in: Counter[str] = Counter()

    def add(self, explanation: Explanation) -> None:
        self.texts += 1
        words = set()
        for piece, value in explanation.pieces:
            if value is not None and not all(unicodedata.category(character)[0] == "P" for character in piece):
                word = piece.lower()
                self._sums[word] += value
                words.add(word)
        self._in.update(words)

    def strongest(self, most: int) -> list[Word]:
        """The words of the largest weight, for the label or against it, the largest first."""
        words = [
            Word(text=word, mean=total / self._in[word], texts=self._in[word]) for word, total in self._sums.items()
        ]
        return sorted(words, key=lambda word: -abs(word.weight))[:most]


def sample(rows: Sequence[Row]) -> list[str]:
    """At most WORDS_MAX_TEXTS texts of rows that were classified, in random order, the same each time.

    As many of the first ones as one likes are a fair sample too.
    """
    texts = [row.text[:SENTIMENT_MAX_CHARACTERS] for row in rows if row.prediction is not None]
    return random.Random(0).sample(texts, min(len(texts), WORDS_MAX_TEXTS))


def explain_each(classifier: SentimentModel, texts: Sequence[str], label: str) -> Iterator[Explanation]:
    """The label explained for each text, one as the caller asks for it; single texts of others go first."""
    for text in texts:
        yield classifier.explain(text, label, urgent=False)
