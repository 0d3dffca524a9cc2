"""A file's own labels: which of a classifier's labels each one means, which column has them, and how far the classifier
agrees with them."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import pandas as pd

from hfjax_app.sentiment.bulk import Results, Row
from hfjax_app.sentiment.table import Table

_SAMPLE = 200  # rows that decide which column has the labels
_SHARE = 0.9  # of its values must be labels
_COLUMN_NAMES = ("label", "labels", "sentiment", "class", "category", "target", "gold", "polarity", "rating", "stars")
_LEAST_PREFIX = 3  # letters of an abbreviation, such as "pos"
_NUMBER = re.compile(r"(\d{1,9})(?:\.0+)?")
_BETWEEN = re.compile(r"[\s_-]+")


class LabelNames:
    """Finds a classifier's label by what a file calls it, in this order:

    - its name, whatever the case, with spaces, hyphens or underscores;
    - a number: the one in the labels' own names where each has one ("1 star", "LABEL_0"), else the label's id;
    - the beginning of one name only, three letters or more: "pos".

    Args:
        labels: the classifier's, by id.
    """

    def __init__(self, labels: Sequence[str]):
        self._names = {_plain(label): label for label in reversed(labels)}
        numbers = [int(parts[0]) if len(parts := re.findall(r"\d{1,9}", label)) == 1 else None for label in labels]
        self.numbers_are_ids = None in numbers or len(set(numbers)) < len(labels)
        self._numbers = dict(zip(range(len(labels)) if self.numbers_are_ids else numbers, labels, strict=True))

    def find(self, text: str) -> str | None:
        """The label; None: the text names none."""
        plain = _plain(text)
        if plain in self._names:
            return self._names[plain]
        if number := _NUMBER.fullmatch(plain):
            return self._numbers.get(int(number[1]))
        longer = [label for name, label in self._names.items() if name.startswith(plain)]
        return longer[0] if len(plain) >= _LEAST_PREFIX and len(longer) == 1 else None

    def share(self, texts: Iterable[str]) -> float:
        """Of the texts that are not blank, how many are labels."""
        are_labels = [self.find(text) is not None for text in texts if text.strip()]
        return sum(are_labels) / len(are_labels) if are_labels else 0.0

    def likely_column(self, table: Table, texts: str) -> str | None:
        """The column that has labels; None: there is none.

        A column of small numbers may be anything, so it must also be called so.

        Args:
            table: a checked file.
            texts: its column with the texts.
        """
        rows = [cell.row for cell in islice(table.cells(texts), _SAMPLE)]
        columns: list[tuple[bool, float, str]] = []
        for at, column in enumerate(table.headers):
            if column == texts:
                continue
            values = [row[at] for row in rows]
            by_name = _plain(column) in _COLUMN_NAMES
            share = self.share(values)
            if share >= _SHARE and (by_name or not all(_is_number(value) for value in values if value.strip())):
                columns.append((by_name, share, column))
        return max(columns, key=lambda column: column[:2])[2] if columns else None


@dataclass(frozen=True, kw_only=True, eq=False)
class Confusion:
    """A classifier's labels beside those of a file: the confusion matrix.

    Args:
        column: the file's column.
        matrix: texts by the file's label (rows) and the classifier's (columns); labels that neither has are left out.
        others: values of the column that name none of the classifier's labels, with their number of rows.
        numbers: what each number in the column was read as, where the numbers are ids.
        of_rows: the file's label of each row that has one, by the row's number.
    """

    column: str
    matrix: pd.DataFrame
    others: Counter[str]
    numbers: dict[str, str]
    of_rows: dict[int, str]

    def differs(self, row: Row) -> bool:
        """Whether the file has another label for a row than the classifier."""
        label = self.of_rows.get(row.number)
        return label is not None and row.prediction is not None and row.prediction.top != label

    @property
    def texts(self) -> int:
        """How many texts have a label in the file and one of the classifier's."""
        return int(self.matrix.to_numpy().sum())

    @property
    def right(self) -> int:
        """How many of these have the same."""
        return int(self.matrix.to_numpy().trace())

    @property
    def labels(self) -> list[str]:
        """Of the rows, and of the columns."""
        return list(self.matrix.columns)

    def count(self, in_file: str, by_model: str) -> int:
        """How many texts have one label in the file and another from the classifier."""
        at = self.labels.index
        return int(self.matrix.to_numpy()[at(in_file), at(by_model)])

    def recall(self, label: str) -> float | None:
        """The share of the file's texts of a label that the classifier gave it; None: the file has none."""
        return _share(self.count(label, label), sum(self.count(label, other) for other in self.labels))

    def precision(self, label: str) -> float | None:
        """Of the texts to which the classifier gave a label, the share that has it in the file; None: it gave none."""
        return _share(self.count(label, label), sum(self.count(other, label) for other in self.labels))


def compare(results: Results, column: str) -> Confusion:
    """The results beside a column of their file. Of labels that are independent, the likeliest one counts.

    Args:
        results: with `column` among its columns.
        column: its cells are labels, as `LabelNames` finds them.
    """
    names, at = LabelNames(results.labels), results.columns.index(column)
    known: dict[str, str | None] = {}
    of_rows: dict[int, str] = {}
    pairs, others = [], Counter[str]()
    for row in results.rows:
        text = row.cells[at].strip()
        if text not in known:
            known[text] = names.find(text)
        label = known[text]
        if label is None:
            others[text] += 1
        else:
            of_rows[row.number] = label
            if row.prediction is not None:
                pairs.append((label, row.prediction.top))
    labels = [label for label in results.labels if any(label in pair for pair in set(pairs))]
    table = pd.DataFrame(pairs, columns=["file", "model"], dtype=object)
    matrix = pd.crosstab(table["file"], table["model"])
    numbers = {text: label for text, label in known.items() if label is not None and _is_number(text)}
    return Confusion(
        column=column,
        matrix=matrix.reindex(index=labels, columns=labels, fill_value=0),
        others=others,
        numbers=dict(sorted(numbers.items())) if names.numbers_are_ids else {},
        of_rows=of_rows,
    )


def _is_number(text: str) -> bool:
    """Whether a label is written as a number."""
    return _NUMBER.fullmatch(_plain(text)) is not None


def _plain(text: str) -> str:
    return _BETWEEN.sub(" ", text.strip().casefold())


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
