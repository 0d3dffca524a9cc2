"""The form of a CSV file: its delimiter, its quotes, and rows of cells in that form.

The form is judged by what the csv module makes of many rows, not by one line. Does not know what a cell means.
"""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import IO, Literal

from hfjax_app.errors import RequestRejected

_DELIMITERS = ",;\t|"
_JUDGED = 1_000  # lines that decide the delimiter
_LEAST_SHARE = 0.25  # of the rows must have as many cells as the first one; else a delimiter is a part of texts
# Excel's line before the first row, as it is written and as spreadsheets save it again.
_HINT = re.compile(r'"?sep=([^"\r\n])"?[,;\t|]*\s*', re.IGNORECASE)
_BACKSLASHED = re.compile(r'\\([\\"])')
_Quoting = Literal[0, 3]  # csv.QUOTE_MINIMAL, csv.QUOTE_NONE


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How a file separates and quotes cells.

    Args:
        delimiter: between cells.
        quoting: of the csv module.
        backslashed: whether a quote inside quotes stands behind a backslash, as MySQL and others write it.
        hinted: whether the first line names the delimiter (`sep=;`) and is no row.
    """

    delimiter: str
    quoting: _Quoting = csv.QUOTE_MINIMAL
    backslashed: bool = False
    hinted: bool = False


COMMAS = Dialect(delimiter=",")


class Misquoted(RequestRejected):
    """A row of several lines whose quotes don't match."""


def dialect_of(file: IO[str], delimiter: str | None = None) -> Dialect:
    """The dialect of a file that is at its start, where it is again afterwards.

    Args:
        file: opened with newline="".
        delimiter: the one that the file's kind has; None: the one by which most rows have as many cells as the first,
            of several the one with the most cells.
    """
    lines = list(islice(file, _JUDGED))
    file.seek(0)
    hint = _HINT.fullmatch(lines[0]) if lines else None
    if hint:
        lines, delimiter = lines[1:], hint[1]
    candidates = [Dialect(delimiter=each, hinted=hint is not None) for each in delimiter or _DELIMITERS]
    return max((_with_escapes(candidate, lines) for candidate in candidates), key=lambda each: _fit(each, lines))


def records(file: IO[str], dialect: Dialect) -> Iterator[list[str]]:
    """The rows. A row of several lines must be well quoted: an open quote would silently swallow the rows after it.

    Raises:
        Misquoted: while reading: it is not.
    """
    before = 1 if dialect.hinted else 0
    begins = before + 1
    lines: list[str] = []  # of the row that is being read

    def read() -> Iterator[str]:
        for line in islice(file, before, None):
            lines.append(line)
            yield line

    reader = _reader(read(), dialect)
    while True:
        begins += len(lines)
        lines.clear()
        try:
            row = next(reader, None)
            if len(lines) > 1:
                next(_reader(lines, dialect, strict=True))
        except csv.Error as error:
            limit = csv.field_size_limit()
            if "limit" in str(error):
                what = f"a cell of more than {limit:,} characters; is a quote left open?"
            else:
                what = "the row that begins here leaves a quote open, or has one inside a cell that is not doubled"
            raise Misquoted(f"line {begins:,}: {what}") from None
        if row is None:
            return
        yield row


def _reader(lines: Iterable[str], dialect: Dialect, *, strict: bool = False) -> Iterator[list[str]]:
    if dialect.backslashed:
        lines = (_BACKSLASHED.sub(_doubled, line) for line in lines)
    return csv.reader(lines, strict=strict, delimiter=dialect.delimiter, quoting=dialect.quoting)


def _doubled(found: re.Match[str]) -> str:
    return '""' if found[1] == '"' else "\\"


def _with_escapes(dialect: Dialect, lines: list[str]) -> Dialect:
    """The dialect with backslashes before quotes, if the lines can be read only so."""
    escaped = Dialect(delimiter=dialect.delimiter, backslashed=True, hinted=dialect.hinted)
    needed = any('\\"' in line for line in lines) and not _well_quoted(lines, dialect)
    return escaped if needed and _well_quoted(lines, escaped) else dialect


def _well_quoted(lines: list[str], dialect: Dialect) -> bool:
    """Whether the csv module reads the lines strictly. The last of them may begin a row of several lines."""
    reader = _reader(lines, dialect, strict=True)
    try:
        for _ in reader:
            pass
    except csv.Error as error:
        return "unexpected end of data" in str(error) and len(lines) == _JUDGED
    return True


def _fit(dialect: Dialect, lines: list[str]) -> tuple[bool, float, int]:
    """How well a dialect fits, to be compared: whether it makes columns, the share of even rows, the cells of a row."""
    widths: list[int] = []
    with suppress(csv.Error):  # a cell that is too long, for which the file is refused later
        widths.extend(len(row) for row in _reader(lines, dialect) if row)
    if not widths:
        return False, 0, 0
    first, *others = widths
    share = round(Counter(others)[first] / len(others), 1) if others else 1.0
    return first > 1 and share >= _LEAST_SHARE, share, first
