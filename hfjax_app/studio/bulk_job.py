"""The classification of one visitor's list, as the events of its page share it."""

from dataclasses import dataclass, field
from pathlib import Path

from hfjax_app.errors import RequestRejected
from hfjax_app.sentiment.bulk import Results, Row
from hfjax_app.sentiment.own_labels import Confusion, Reading, compare, doubted, readings
from hfjax_app.studio.label_drawing import meaning
from hfjax_app.validation import quoted

ALL = "all rows"
DIFFER = "where your label differs"


@dataclass(kw_only=True, eq=False)
class BulkJob:
    """
    Attributes:
        results: the rows that are done.
        total: how many rows the list has.
        cancelled: whether the visitor has cancelled it.
        agreement: with the file's own labels; None: it has none, the list is not done, or their meaning is not certain.
        column: with these; empty: there is none.
        readings: what its numbers may mean, by their words.
        words: the latest search for the words that matter most.
        files: CSV files of the results, by what they show and by the number of rows that were done.
    """

    results: Results
    total: int
    cancelled: bool = False
    agreement: Confusion | None = None
    column: str = ""
    readings: dict[str, Reading] = field(default_factory=dict)
    words: "WordSearch | None" = None
    files: dict[tuple[str, int], Path] = field(default_factory=dict)

    def rows(self, choice: str) -> list[Row]:
        """The rows that a page shows: ALL, those that DIFFER from the file's labels, or those of a label.

        Raises:
            RequestRejected: no row has that label.
        """
        if choice == ALL:
            return self.results.rows[:]
        if choice == DIFFER and self.agreement is not None:
            return [row for row in self.results.rows if self.agreement.differs(row)]
        if choice not in self.results.counts:
            raise RequestRejected(f"label {quoted(choice)}: no row has it; choose one from the list")
        return list(self.results.of(choice))

    def compare(self, column: str) -> str | None:
        """Compare the results with this column of the file, whose numbers are read where that is certain.

        Returns:
            Which of `readings` was chosen; None: it is for the visitor to choose, and `agreement` is None.
        """
        at = self.results.columns.index(column)
        found, is_certain = readings(self.results.labels, {row.cells[at] for row in self.results.rows})
        self.column, self.readings = column, {meaning(reading): reading for reading in found}
        if not found or (is_certain and not doubted(self.results, column, found[0], found[1:])):
            self.agreement = compare(self.results, column, *found[:1])
            return next(iter(self.readings), "")
        self.agreement = None
        return None

    def read_as(self, chosen: str) -> None:
        """Compare once more, with the numbers read in this way.

        Raises:
            RequestRejected: it is none of `readings`.
        """
        if chosen not in self.readings:
            raise RequestRejected(f"meaning {quoted(chosen)}: must be one of those in the list")
        self.agreement = compare(self.results, self.column, self.readings[chosen])
        self.files = {key: file for key, file in self.files.items() if key[0] != DIFFER}

    def search_words(self, label: str) -> "WordSearch":
        """Begin another search, in place of one that may still run."""
        self.drop_words()
        self.words = WordSearch(label=label)
        return self.words

    def stop_words(self) -> None:
        """End the search; its page shows the words so far."""
        if self.words is not None:
            self.words.cancelled = True

    def drop_words(self) -> None:
        """End the search; its page shows nothing of it any more."""
        self.stop_words()
        self.words = None


@dataclass(kw_only=True, eq=False)
class WordSearch:
    """
    Attributes:
        label: whose words are searched for.
        cancelled: whether the visitor has stopped it, or another one has begun.
    """

    label: str
    cancelled: bool = False


def stored(job: BulkJob | None) -> BulkJob:
    """The job of a page.

    Raises:
        RequestRejected: it has none, or no longer.
    """
    if job is None:
        raise RequestRejected("these results were deleted: classify the texts again")
    return job
