"""Texts from a file or a text box: CSV, TSV, JSON or plain lines, read row by row after every limit was checked.

A row that can't be classified keeps its place and has a note; a file is refused only where it can't be read as a whole.
"""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import IO

from hfjax_app.errors import RequestRejected
from hfjax_app.limits import (
    TABLE_MAX_BYTES,
    TABLE_MAX_COLUMNS,
    TABLE_MAX_KEY_CHARACTERS,
    TABLE_MAX_NAME_CHARACTERS,
    TABLE_MAX_ROWS,
)
from hfjax_app.sentiment.rows import BLANK, BROKEN, TEXT_NAMES, CsvForm, Misquoted, encoding_of, json_values

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".txt")

_SAMPLE = 200  # rows that decide a JSON file's columns, and which column likely holds the texts
_LINES = "line"
_DEEPEST = 3  # levels of objects in a row whose fields are columns
_COMMAS = CsvForm()
_UNSHOWN = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")  # control characters and halves of surrogate pairs


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One row's text, and a note on what is wrong with the row, if anything.

    Args:
        text: of the chosen column.
        note: "" where nothing is wrong.
        row: the row's texts of all columns; empty where rows are plain lines.
    """

    text: str
    note: str = ""
    row: tuple[str, ...] = ()


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
    _form: CsvForm = _COMMAS
    _has_header: bool = True

    @property
    def headers(self) -> tuple[str, ...]:
        """The names of `Cell.row`; empty where rows are plain lines."""
        return () if self.kind == ".txt" else self.columns

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
                for value in json_values(file, self.name):
                    yield _json_cell(value, column, self.columns)
            else:
                rows = self._form.rows(file)
                if self._has_header:
                    next(rows, None)
                at, wide = self.columns.index(column), len(self.columns)
                for row in rows:
                    yield _csv_cell(row, at, wide)


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
    kind = ".jsonl" if kind in (".ndjson", ".json") else kind
    size = path.stat().st_size
    if size > TABLE_MAX_BYTES:
        raise RequestRejected(f"{name!r} has {size:,} bytes: at most {TABLE_MAX_BYTES:,}")
    encoding, form = encoding_of(path, name), _COMMAS
    with _opened(path, encoding) as file:
        if kind == ".txt":
            shape = _TableSize({_LINES: 0}, _counted(_lines(file)))
        elif kind == ".jsonl":
            shape = _json_shape(file, name)
        else:
            form = CsvForm.of(file, "\t" if kind == ".tsv" else None)
            try:
                shape = _csv_shape(file, name, form, has_header)
            except Misquoted:
                if form.delimiter != "\t":
                    raise
                file.seek(0)  # many programs write tab-separated values without quoting; there quotes are text
                form = replace(form, quoting=csv.QUOTE_NONE)
                shape = _csv_shape(file, name, form, has_header)
    if shape.rows == 0:
        raise RequestRejected(f"{name!r} holds no rows")
    return Table(
        name=name,
        kind=kind,
        columns=tuple(shape.lengths),
        likely=_likely(shape.lengths),
        rows=shape.rows,
        _source=path,
        _encoding=encoding,
        _form=form,
        _has_header=has_header,
    )


@dataclass(frozen=True)
class _TableSize:
    """A file's columns, each with the characters of its texts in the first rows, and its number of rows."""

    lengths: dict[str, int]
    rows: int


def _csv_shape(file: IO[str], name: str, form: CsvForm, has_header: bool) -> _TableSize:
    rows = form.rows(file)
    first = next(rows, None)
    if not first:
        raise RequestRejected(f"{name!r}: the first row is empty; it should hold the columns' names or a text")
    if len(first) > TABLE_MAX_COLUMNS:
        raise RequestRejected(f"{name!r} has {len(first):,} columns: at most {TABLE_MAX_COLUMNS}")
    if has_header:
        columns = _unique(first)
    else:
        columns, rows = _unique([""] * len(first)), chain([first], rows)
    sample = list(islice(rows, _SAMPLE))
    lengths = {column: sum(len(row[at]) for row in sample if at < len(row)) for at, column in enumerate(columns)}
    return _TableSize(lengths, _counted(chain(sample, rows)))


def _json_shape(file: IO[str], name: str) -> _TableSize:
    lengths = Counter[str]()
    values = json_values(file, name)
    rows = 0
    for value in islice(values, _SAMPLE):
        rows += 1
        for key, text in _fields(value).items():
            if key.strip() and len(key) <= TABLE_MAX_KEY_CHARACTERS and not _UNSHOWN.search(key):
                lengths[key] += len(text) if isinstance(text, str) else 0
    rows = _counted(values, rows)
    if rows and not lengths:
        raise RequestRejected(f'{name!r}: its first {_SAMPLE} rows hold no JSON objects like {{"text": "..."}}')
    if len(lengths) > TABLE_MAX_COLUMNS:
        raise RequestRejected(f"{name!r} has {len(lengths):,} fields: at most {TABLE_MAX_COLUMNS}")
    return _TableSize(lengths, rows)


def _likely(lengths: dict[str, int]) -> str:
    """The column with one of TEXT_NAMES, else the one with the longest texts."""
    texts = [column for name in TEXT_NAMES for column in lengths if own_name(column).lower() == name]
    return texts[0] if texts else max(lengths, key=lengths.__getitem__)


def own_name(column: str) -> str:
    """A column's name without those of the objects that it stands in."""
    return column.rpartition(".")[2].strip()


def _unique(names: list[str]) -> list[str]:
    """Unique names of the columns: a number is added where a name is missing or repeats."""
    names = [" ".join(name.split())[:TABLE_MAX_NAME_CHARACTERS] for name in names]
    columns: list[str] = []
    for number, name in enumerate(names, 1):
        if not name or name in columns:
            numbered = (f"{name or 'column'} {count}" for count in range(number, number + 2 * len(names)))
            name = next(other for other in numbered if other not in columns and other not in names)
        columns.append(name)
    return columns


def _csv_cell(row: list[str], at: int, wide: int) -> Cell:
    whole = tuple((row + [""] * wide)[:wide])
    note = "" if len(row) in (wide, 0) else f"row has {len(row)} cells instead of {wide}"
    return Cell(text=whole[at], note=note, row=whole)


def _json_cell(value: object, column: str, columns: tuple[str, ...]) -> Cell:
    if value is BLANK or value is BROKEN:
        return Cell(text="", note="" if value is BLANK else "not a line of JSON", row=("",) * len(columns))
    fields = _fields(value)
    row = tuple(map(_as_text, map(fields.get, columns)))
    text = fields.get(column)
    if isinstance(text, str):
        return Cell(text=text, row=row)
    note = f"no {column!r} in this row" if text is None else f"{column!r} is {type(text).__name__}, not text"
    return Cell(text="", note=note, row=row)


def _fields(value: object) -> dict[str, object]:
    """A JSON value's fields by column: those of objects inside it as `outer.inner`; a text alone is a line."""
    if isinstance(value, str):
        return {_LINES: value}
    if isinstance(value, list):
        value = {f"column {number}": cell for number, cell in enumerate(value, 1)}
    return dict(_flat(value, "", _DEEPEST)) if isinstance(value, dict) else {}


def _flat(value: dict[str, object], before: str, depth: int) -> Iterator[tuple[str, object]]:
    for key, each in value.items():
        if isinstance(each, dict) and each and depth:
            yield from _flat(each, f"{before}{key}.", depth - 1)
        else:
            yield f"{before}{key}", each


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def _lines(file: IO[str]) -> Iterator[str]:
    return (line.rstrip("\r\n") for line in file)


def _counted(rows: Iterable[object], count: int = 0) -> int:
    """The number of rows, after so many; counting stops at the limit."""
    for _ in rows:
        count += 1
        if count > TABLE_MAX_ROWS:
            raise RequestRejected(f"more than {TABLE_MAX_ROWS:,} rows: split the file")
    return count


def _opened(source: Path | str, encoding: str) -> IO[str]:
    return io.StringIO(source, newline="") if isinstance(source, str) else source.open(encoding=encoding, newline="")
