"""A file's own labels: which of a classifier's labels each one means, which column has them, and how far the classifier
agrees with them."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import pandas as pd

from hfjax_app.sentiment.bulk import Results, Row
from hfjax_app.sentiment.table import Table, own_name

_SAMPLE = 200  # rows that decide which column has the labels
_SHARE = 0.9  # of its values must be labels
_COLUMN_NAMES = ("label", "labels", "sentiment", "class", "category", "target", "gold", "polarity", "rating", "stars")
_LEAST_PREFIX = 3  # letters of an abbreviation, such as "pos"
_NUMBER = re.compile(r"(\d{1,9})(?:\.0+)?")
_ANY_NUMBER = re.compile(r"[+-]?\d{1,9}(?:\.\d{1,9})?", re.ASCII)
# The words of labels that have an order, and what makes them stronger or weaker.
_RANKS = {
    **dict.fromkeys(("negative", "neg", "bad", "bearish", "unhappy", "dissatisfied"), -2),
    **dict.fromkeys(("neutral", "neu", "mixed", "okay", "ok", "average"), 0),
    **dict.fromkeys(("positive", "pos", "good", "bullish", "happy", "satisfied"), 2),
}
_STRONGER, _WEAKER = ("very", "extremely", "strongly", "highly"), ("slightly", "somewhat", "weakly")
_USUAL_POINTS = 11  # of a scale of whole numbers; what a longer one means is asked
_LEAST_EVIDENCE = 10  # texts by which a reading is doubted
_DOUBT = 0.2  # of them that agree with another reading and not with this one
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
            by_name = _plain(own_name(column)) in _COLUMN_NAMES
            share = self.share(values)
            if by_name and order_of(list(self._names.values())) is not None:  # then any scale may be labels
                share = max(share, _share_of_numbers(values))
            if share >= _SHARE and (by_name or not all(_is_number(value) for value in values if value.strip())):
                columns.append((by_name, share, column))
        return max(columns, key=lambda column: column[:2])[2] if columns else None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What the numbers in a column mean.

    Args:
        note: how they are read.
        labels: of each number, as the column writes it; a number that means none is not there.
    """

    note: str
    labels: Mapping[str, str] = field(default_factory=dict)


NAMES_ONLY = Reading(note="")


def order_of(labels: Sequence[str]) -> tuple[str, ...] | None:
    """The labels from the worst to the best, by the numbers or the words in their names; None: they have no order."""
    numbers = [re.findall(r"\d{1,9}", label) for label in labels]
    ranks: list[int | None] = (
        [int(found[0]) for found in numbers]
        if all(len(found) == 1 for found in numbers) and not all(_plain(label).startswith("label") for label in labels)
        else [_rank(label) for label in labels]
    )
    if len(labels) < 2 or None in ranks or len(set(ranks)) < len(labels):
        return None
    return tuple(label for _, label in sorted(zip(ranks, labels, strict=True), key=lambda pair: pair[0] or 0))


def _rank(label: str) -> int | None:
    *degree, word = _plain(label).split(" ")
    if (rank := _RANKS.get(word)) is None or len(degree) > 1:
        return None
    if not degree:
        return rank
    return rank * 2 if degree[0] in _STRONGER else rank // 2 if degree[0] in _WEAKER else None


def readings(labels: Sequence[str], values: Iterable[str]) -> tuple[list[Reading], bool]:
    """What the numbers among a column's values may mean, the likeliest first, and whether that is certain.

    It is certain where the labels' own names hold these numbers, where only the order of the labels fits them or only
    the labels' ids do, and where both say the same.

    Args:
        labels: the classifier's, by id.
        values: of the column.
    """
    names, order = LabelNames(labels), order_of(labels)
    written = {text: float(text) for value in values if _ANY_NUMBER.fullmatch(text := value.strip())}
    if not written:
        return [NAMES_ONLY], True
    by_name = {text: names.find(f"{number:g}") for text, number in written.items()}
    fits = None not in by_name.values()
    own = Reading(note="as the model's ids", labels={text: label for text, label in by_name.items() if label})
    if not names.numbers_are_ids and fits:
        return [Reading(note="as in the labels' names", labels=own.labels)], True
    found = [own] if fits else []
    low, high = min(written.values()), max(written.values())
    if order is not None:
        ups = {text: _on_scale(number, low, high, order) for text, number in written.items()}
        downs = {text: _on_scale(number, low, high, order[::-1]) for text, number in written.items()}
        found.insert(0, Reading(note="by their order", labels={text: label for text, label in ups.items() if label}))
        found.append(Reading(note="in reverse order", labels={text: label for text, label in downs.items() if label}))
    distinct = [reading for at, reading in enumerate(found) if reading.labels not in [r.labels for r in found[:at]]]
    whole = all(number.is_integer() for number in written.values())
    is_usual = order is None or (whole and 0 < high - low < _USUAL_POINTS)
    return distinct, bool(distinct) and is_usual and (not fits or found[0].labels == own.labels)


def _on_scale(number: float, low: float, high: float, order: Sequence[str]) -> str | None:
    """The label at the same place between the worst and the best; None: in the middle of two."""
    place = (number - low) / (high - low) * len(order) if high > low else 0.0
    at = int(place)
    if place == at and 0 < at < len(order):  # on the border of two
        if 2 * at == len(order):
            return None
        at -= 2 * at < len(order)
    return order[min(at, len(order) - 1)]


def doubted(results: Results, column: str, chosen: Reading, others: Iterable[Reading]) -> bool:
    """Whether the classifier agrees far more with another reading of the numbers."""
    count, *more = (compare(results, column, reading).right for reading in (chosen, *others))
    texts = compare(results, column, chosen).texts
    return texts >= _LEAST_EVIDENCE and any(other - count > _DOUBT * texts for other in more)


@dataclass(frozen=True, kw_only=True, eq=False)
class Confusion:
    """A classifier's labels beside those of a file: the confusion matrix.

    Args:
        column: the file's column.
        matrix: texts by the file's label (rows) and the classifier's (columns); labels that neither has are left out.
        others: values of the column that name none of the classifier's labels, with their number of rows.
        reading: of the numbers in the column.
        of_rows: the file's label of each row that has one, by the row's number.
    """

    column: str
    matrix: pd.DataFrame
    others: Counter[str]
    reading: Reading
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


def compare(results: Results, column: str, reading: Reading = NAMES_ONLY) -> Confusion:
    """The results beside a column of their file. Of labels that are independent, the likeliest one counts.

    Args:
        results: with `column` among its columns.
        column: its cells are labels, as `LabelNames` finds them by name, or as `reading` says of numbers.
        reading: one of `readings`.
    """
    names, at = LabelNames(results.labels), results.columns.index(column)
    known: dict[str, str | None] = {}
    of_rows: dict[int, str] = {}
    pairs, others = [], Counter[str]()
    for row in results.rows:
        text = row.cells[at].strip()
        if text not in known:
            known[text] = reading.labels.get(text) if _ANY_NUMBER.fullmatch(text) else names.find(text)
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
    return Confusion(
        column=column,
        matrix=matrix.reindex(index=labels, columns=labels, fill_value=0),
        others=others,
        reading=reading,
        of_rows=of_rows,
    )


def _is_number(text: str) -> bool:
    """Whether a label is written as a number."""
    return _ANY_NUMBER.fullmatch(text.strip()) is not None


def _share_of_numbers(values: Iterable[str]) -> float:
    """Of the values that are not blank, how many are numbers."""
    are_numbers = [_is_number(value) for value in values if value.strip()]
    return sum(are_numbers) / len(are_numbers) if are_numbers else 0.0


def _plain(text: str) -> str:
    return _BETWEEN.sub(" ", text.strip().casefold())


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
