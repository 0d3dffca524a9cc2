"""The classification of one visitor's list, as the events of its page share it."""

from dataclasses import dataclass, field
from pathlib import Path

from hfjax_app.errors import RequestRejected
from hfjax_app.sentiment.bulk import Results


@dataclass(kw_only=True, eq=False)
class BulkJob:
    """
    Attributes:
        results: the rows that are done.
        total: how many rows the list has.
        cancelled: whether the visitor has cancelled it.
        words: the latest search for the words that matter most.
        files: CSV files of the results, by label (None: all) and by the number of rows that were done.
    """

    results: Results
    total: int
    cancelled: bool = False
    words: "WordSearch | None" = None
    files: dict[tuple[str | None, int], Path] = field(default_factory=dict)

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
