"""Texts from a file or a text box: CSV, TSV, JSONL or plain lines, read row by row after every limit was checked.

No encoding is guessed: UTF-8 with or without a byte order mark, UTF-16 with one. A row that can't be classified keeps
its place and has a note; a file is refused only where it can't be read as a whole. Does not classify.
"""

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, TypedDict

from hfjax_app.errors import RequestRejected
from hfjax_app.limits import (
    TABLE_MAX_BYTES,
    TABLE_MAX_COLUMNS,
    TABLE_MAX_KEY_CHARACTERS,
    TABLE_MAX_NAME_CHARACTERS,
    TABLE_MAX_ROWS,
)

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".txt")

_DELIMITERS = ",;\t|"
_SAMPLE = 200  # rows that decide a JSONL file's columns, and which column likely holds the texts
_TEXT_NAMES = ("text", "review", "sentence", "comment", "content", "message", "body", "tweet")
# The first bytes of formats that are often renamed to .csv.
_ARCHIVES = {
    b"PK\x03\x04": "a zip archive, which is also what an Excel workbook is",
    b"\x1f\x8b": "gzip",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
    b"PAR1": "Parquet",
    b"%PDF": "a PDF",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf": "a 7z archive",
}
_LINES = "line"
_Quoting = Literal[0, 3]  # csv.QUOTE_MINIMAL, csv.QUOTE_NONE
_UNSHOWN = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")  # control characters and halves of surrogate pairs


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One row's text, and a note on what is wrong with the row, if anything."""

    text: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A checked source of texts. Only its location and shape are kept in memory.

    Args:
        name: for display.
        kind: ".csv", ".tsv", ".jsonl" or ".txt".
        columns: names to choose from; only "line" where the rows are plain lines.
        likely: the column that most likely holds the texts.
        rows: how many there are.
    """

    name: str
    kind: str
    columns: tuple[str, ...]
    likely: str
    rows: int
    _source: Path | str
    _encoding: str = "utf-8"
    _delimiter: str = ","
    _quoting: _Quoting = csv.QUOTE_MINIMAL
    _has_header: bool = True

    def cells(self, column: str) -> Iterator[Cell]:
        """The column's text of each row, read one by one as the caller iterates.

        Raises:
            RequestRejected: there is no such column; or, while reading, the file has changed.
        """
        if column not in self.columns:
            raise RequestRejected(f"column {column!r}: must be one of {', '.join(self.columns)}")
        return self._cells(column)

    def _cells(self, column: str) -> Iterator[Cell]:
        with _opened(self._source, self._encoding) as file:
            if self.kind == ".txt":
                for line in _lines(file):
                    yield Cell(text=line)
            elif self.kind == ".jsonl":
                for line in _lines(file):
                    yield _json_cell(line, column)
            else:
                rows = _records(file, self._delimiter, self._quoting)
                if self._has_header:
                    next(rows, None)
                at, wide = self.columns.index(column), len(self.columns)
                for row in rows:
                    yield _csv_cell(row, at, wide)


class _Shared(TypedDict):
    """Arguments of a file's Table that all formats share."""

    name: str
    kind: str
    _source: Path
    _encoding: str


def pasted(text: object) -> Table:
    """The lines of a text box. An empty line is an empty row.

    Raises:
        RequestRejected: not a text, a blank one, or more than TABLE_MAX_BYTES or TABLE_MAX_ROWS.
    """
    if not isinstance(text, str):
        raise RequestRejected(f"texts: must be lines of text, not {type(text).__name__}")
    if not text.strip():
        raise RequestRejected("no texts: paste some lines or choose a file first")
    if len(text) > TABLE_MAX_BYTES:
        raise RequestRejected(f"{len(text):,} characters: at most {TABLE_MAX_BYTES:,}")
    rows = _counted(_lines(_opened(text, "")))
    return Table(name="pasted lines", kind=".txt", columns=(_LINES,), likely=_LINES, rows=rows, _source=text)


def opened(path: Path, name: str | None = None, *, has_header: bool = True) -> Table:
    """A file's columns and number of rows.

    Args:
        path: the file. It is read again for the texts, so it must not be removed.
        name: its name at the user's; the suffix decides the format.
        has_header: whether the first row of a CSV or TSV file holds the columns' names.

    Raises:
        RequestRejected: with the value and the limit: wrong suffix, too large, too many rows or columns, another format
            inside, another encoding, or empty.
    """
    name = name or path.name
    kind = Path(name).suffix.lower()
    if kind not in SUFFIXES:
        raise RequestRejected(f"{name!r}: the name must end in one of {', '.join(SUFFIXES)}")
    kind = ".jsonl" if kind == ".ndjson" else kind
    size = path.stat().st_size
    if size > TABLE_MAX_BYTES:
        raise RequestRejected(f"{name!r} has {size:,} bytes: at most {TABLE_MAX_BYTES:,}")
    encoding = _encoding(path, name)
    shared: _Shared = {"name": name, "kind": kind, "_source": path, "_encoding": encoding}
    with _opened(path, encoding) as file:
        if kind == ".txt":
            return Table(columns=(_LINES,), likely=_LINES, rows=_filled(_counted(_lines(file)), name), **shared)
        if kind == ".jsonl":
            return _json_table(file, shared)
        if kind == ".csv":
            return _csv_table(file, has_header, csv.QUOTE_MINIMAL, shared)
        try:
            return _csv_table(file, has_header, csv.QUOTE_MINIMAL, shared)
        except _Misquoted:  # many programs write tab-separated values without quoting; there quotes are text
            file.seek(0)
            return _csv_table(file, has_header, csv.QUOTE_NONE, shared)


class _Misquoted(RequestRejected):
    """A row of several lines whose quotes don't match."""


def _csv_table(file: IO[str], has_header: bool, quoting: _Quoting, shared: _Shared) -> Table:
    name = shared["name"]
    delimiter = "\t" if shared["kind"] == ".tsv" else _delimiter(file.readline())
    file.seek(0)
    records = _records(file, delimiter, quoting)
    first = next((row for row in records), None)
    if not first:
        raise RequestRejected(f"{name!r}: the first row is empty; it should hold the columns' names or a text")
    if len(first) > TABLE_MAX_COLUMNS:
        raise RequestRejected(f"{name!r} has {len(first):,} columns: at most {TABLE_MAX_COLUMNS}")
    columns = _unique(first if has_header else [""] * len(first))
    sample = [] if has_header else [first]

    def sampled() -> Iterator[list[str]]:
        yield from sample
        for row in records:
            if len(sample) < _SAMPLE:
                sample.append(row)
            yield row

    rows = _filled(_counted(sampled()), name)
    lengths = [sum(len(row[at]) for row in sample if at < len(row)) for at in range(len(columns))]
    return Table(
        columns=columns,
        likely=_likely(columns, lengths),
        rows=rows,
        _delimiter=delimiter,
        _quoting=quoting,
        _has_header=has_header,
        **shared,
    )


def _json_table(file: IO[str], shared: _Shared) -> Table:
    lengths: dict[str, int] = {}

    def sampled() -> Iterator[str]:
        for number, line in enumerate(_lines(file)):
            if number < _SAMPLE:
                value = _parsed(line)
                fields = {_LINES: value} if isinstance(value, str) else value if isinstance(value, dict) else {}
                for key, text in fields.items():
                    if not key.strip() or len(key) > TABLE_MAX_KEY_CHARACTERS or _UNSHOWN.search(key):
                        continue
                    lengths[key] = lengths.get(key, 0) + (len(text) if isinstance(text, str) else 0)
            yield line

    rows = _filled(_counted(sampled()), shared["name"])
    if not lengths:
        raise RequestRejected(
            f'{shared["name"]!r}: its first {_SAMPLE} lines hold no JSON objects like {{"text": "..."}}'
        )
    if len(lengths) > TABLE_MAX_COLUMNS:
        raise RequestRejected(f"{shared['name']!r} has {len(lengths):,} fields: at most {TABLE_MAX_COLUMNS}")
    columns = tuple(lengths)
    return Table(columns=columns, likely=_likely(columns, list(lengths.values())), rows=rows, **shared)


def _likely(columns: tuple[str, ...], lengths: list[int]) -> str:
    """The column with one of _TEXT_NAMES, else the one with the longest texts."""
    named = [column for name in _TEXT_NAMES for column in columns if column.strip().lower() == name]
    return named[0] if named else columns[max(range(len(columns)), key=lengths.__getitem__)]


def _unique(names: list[str]) -> tuple[str, ...]:
    """Unique names of the columns: a number is added where a name is missing or repeats."""
    names = [" ".join(name.split())[:TABLE_MAX_NAME_CHARACTERS] for name in names]
    columns: list[str] = []
    for number, name in enumerate(names, 1):
        if not name or name in columns:
            numbered = (f"{name or 'column'} {count}" for count in range(number, number + 2 * len(names)))
            name = next(other for other in numbered if other not in columns and other not in names)
        columns.append(name)
    return tuple(columns)


def _delimiter(line: str) -> str:
    """The delimiter: the candidate that is most frequent outside quotes in the first line."""
    outside = "".join(line.split('"')[::2])
    return max(_DELIMITERS, key=outside.count)


def _csv_cell(row: list[str], at: int, wide: int) -> Cell:
    if len(row) in (wide, 0):
        return Cell(text=row[at] if row else "")
    return Cell(text=row[at] if at < len(row) else "", note=f"row has {len(row)} cells instead of {wide}")


def _json_cell(line: str, column: str) -> Cell:
    if not line.strip():
        return Cell(text="")
    value = _parsed(line)
    if value is None:
        return Cell(text="", note="not a line of JSON")
    text = value.get(column) if isinstance(value, dict) else value if column == _LINES else None
    if isinstance(text, str):
        return Cell(text=text)
    if text is None:
        return Cell(text="", note=f"no {column!r} in this line")
    return Cell(text="", note=f"{column!r} is {type(text).__name__}, not text")


def _parsed(line: str) -> object:
    """A line's JSON value, or None where the line is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _records(file: IO[str], delimiter: str, quoting: _Quoting) -> Iterator[list[str]]:
    """The rows. A row of several lines must be well quoted: an open quote would silently swallow the rows after it."""
    lines: list[str] = []  # of the row that is being read

    def read() -> Iterator[str]:
        for line in file:
            lines.append(line)
            yield line

    reader = csv.reader(read(), delimiter=delimiter, quoting=quoting)
    while True:
        lines.clear()
        begins = reader.line_num + 1
        try:
            row = next(reader, None)
            if len(lines) > 1:
                next(csv.reader(lines, strict=True, delimiter=delimiter, quoting=quoting))
        except csv.Error as error:
            limit = csv.field_size_limit()
            if "limit" in str(error):
                what = f"a cell of more than {limit:,} characters; is a quote left open?"
            else:
                what = "the row that begins here leaves a quote open, or has one inside a cell that is not doubled"
            raise _Misquoted(f"line {begins:,}: {what}") from None
        if row is None:
            return
        yield row


def _lines(file: IO[str]) -> Iterator[str]:
    return (line.rstrip("\r\n") for line in file)


def _counted(rows: Iterator[object]) -> int:
    """The number of rows; counting stops at the limit."""
    count = 0
    for _ in rows:
        count += 1
        if count > TABLE_MAX_ROWS:
            raise RequestRejected(f"more than {TABLE_MAX_ROWS:,} rows: split the file")
    return count


def _filled(rows: int, name: str) -> int:
    if rows == 0:
        raise RequestRejected(f"{name!r} holds no rows")
    return rows


def _encoding(path: Path, name: str) -> str:
    """The file's encoding; the whole file is read once, piece by piece, to check it."""
    with path.open("rb") as file:
        head = file.read(8)
    for mark, what in _ARCHIVES.items():
        if head.startswith(mark):
            raise RequestRejected(f"{name!r} is {what}, no table of text: export it as CSV")
    encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    at = 0
    with path.open(encoding=encoding, newline="") as file:
        try:
            while piece := file.read(1 << 16):
                if "\0" in piece:
                    raise RequestRejected(
                        f"{name!r} holds a NUL character at {at + piece.index(chr(0)):,}: no text file"
                    )
                at += len(piece)
        except UnicodeDecodeError as error:
            what = encoding.removesuffix("-sig").upper()
            raise RequestRejected(
                f"{name!r} is not {what} ({error.reason} after character {at:,}): save it as UTF-8"
            ) from None
    return encoding


def _opened(source: Path | str, encoding: str) -> IO[str]:
    return io.StringIO(source, newline="") if isinstance(source, str) else source.open(encoding=encoding, newline="")
