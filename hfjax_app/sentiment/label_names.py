"""A file's own labels: which of a classifier's labels each one means, and which column has them."""

import re
from collections.abc import Iterable, Sequence
from itertools import islice

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
        numbers = [int(found[0]) if len(found := re.findall(r"\d{1,9}", label)) == 1 else None for label in labels]
        self.numbers_are_ids = None in numbers or len(set(numbers)) < len(labels)
        self._numbers = dict(zip(range(len(labels)) if self.numbers_are_ids else numbers, labels, strict=True))

    def find(self, text: str) -> str | None:
        """The label; None: the text names none."""
        plain = _plain(text)
        if plain in self._names:
            return self._names[plain]
        if number := _NUMBER.fullmatch(plain):
            return self._numbers.get(int(number[1]))
        begun = [label for name, label in self._names.items() if name.startswith(plain)]
        return begun[0] if len(plain) >= _LEAST_PREFIX and len(begun) == 1 else None

    def share(self, texts: Iterable[str]) -> float:
        """Of the texts that are not blank, how many are labels."""
        found = [self.find(text) is not None for text in texts if text.strip()]
        return sum(found) / len(found) if found else 0.0

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
            is_called_so = _plain(column) in _COLUMN_NAMES
            share = self.share(values)
            if share >= _SHARE and (is_called_so or not all(is_number(value) for value in values if value.strip())):
                columns.append((is_called_so, share, column))
        return max(columns, key=lambda each: each[:2])[2] if columns else None


def is_number(text: str) -> bool:
    """Whether a label is written as a number."""
    return _NUMBER.fullmatch(_plain(text)) is not None


def _plain(text: str) -> str:
    return _BETWEEN.sub(" ", text.strip().casefold())
