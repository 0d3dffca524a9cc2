"""How far a classifier agrees with the labels in a file: the confusion matrix and what is computed from it."""

from collections import Counter
from dataclasses import dataclass

import pandas as pd

from hfjax_app.sentiment.bulk import Results, Row
from hfjax_app.sentiment.label_names import LabelNames, is_number


@dataclass(frozen=True, kw_only=True, eq=False)
class Agreement:
    """A confusion matrix.

    Args:
        column: the file's column.
        matrix: texts by the file's label (rows) and the classifier's (columns); labels that neither has are left out.
        others: values of the column that name none of the classifier's labels, with their number of rows.
        numbers: what each number in the column was read as, where the numbers are ids.
        given: the file's label of each row that has one, by the row's number.
    """

    column: str
    matrix: "pd.DataFrame"
    others: Counter[str]
    numbers: dict[str, str]
    given: dict[int, str]

    def differs(self, row: Row) -> bool:
        """Whether the file has another label for a row than the classifier."""
        given = self.given.get(row.number)
        return given is not None and row.prediction is not None and row.prediction.top != given

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

    def count(self, given: str, said: str) -> int:
        """How many texts have one label in the file and another from the classifier."""
        at = self.labels.index
        return int(self.matrix.to_numpy()[at(given), at(said)])

    def recall(self, label: str) -> float | None:
        """The share of the file's texts of a label that the classifier gave it; None: the file has none."""
        return _share(self.count(label, label), sum(self.count(label, other) for other in self.labels))

    def precision(self, label: str) -> float | None:
        """Of the texts to which the classifier gave a label, the share that has it in the file; None: it gave none."""
        return _share(self.count(label, label), sum(self.count(other, label) for other in self.labels))


def compare(results: Results, column: str) -> Agreement:
    """The results beside a column of their file. Of labels that are independent, the likeliest one counts.

    Args:
        results: with `column` among its columns.
        column: its cells are labels, as `LabelNames` finds them.
    """
    names, at = LabelNames(results.labels), results.columns.index(column)
    known: dict[str, str | None] = {}
    given: dict[int, str] = {}
    pairs, others = [], Counter[str]()
    for row in results.rows:
        text = row.cells[at].strip()
        if text not in known:
            known[text] = names.find(text)
        label = known[text]
        if label is None:
            others[text] += 1
        else:
            given[row.number] = label
            if row.prediction is not None:
                pairs.append((label, row.prediction.top))
    used = [label for label in results.labels if any(label in pair for pair in set(pairs))]
    table = pd.DataFrame(pairs, columns=["given", "said"], dtype=object)
    matrix = pd.crosstab(table["given"], table["said"])
    read = {text: label for text, label in known.items() if label is not None and is_number(text)}
    return Agreement(
        column=column,
        matrix=matrix.reindex(index=used, columns=used, fill_value=0),
        others=others,
        numbers=dict(sorted(read.items())) if names.numbers_are_ids else {},
        given=given,
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
