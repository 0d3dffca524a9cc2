"""The rows of a file of texts: its encoding, then cells of CSV or values of JSON, read one by one.

The form of a CSV file is judged by what the csv module makes of many rows, not by one line.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import IO, Any, Literal

from hfjax_app.errors import RequestRejected

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
_DELIMITERS = ",;\t|"
_JUDGED = 1_000  # lines that decide the delimiter
_LEAST_SHARE = 0.25  # of the rows must have as many cells as the first one; else a delimiter is a part of texts
# Excel's line before the first row, as it is written and as spreadsheets save it again.
_HINT = re.compile(r'"?sep=([^"\r\n])"?[,;\t|]*\s*', re.IGNORECASE)
_BACKSLASHED = re.compile(r'\\([\\"])')
_SPACE = re.compile(r"\s*")
TEXT_NAMES = ("text", "review", "sentence", "comment", "content", "message", "body", "tweet")
_COUNT = re.compile(r"\d+", re.ASCII)  # a row's name in pandas' usual index
_DEEPEST = 3  # levels of objects around rows
_MOST_PARTS = 1_000_000  # lists and objects of a file that is one object
BLANK, BROKEN = object(), object()  # in the place of a value: what stands on a line that holds none


def encoding_of(path: Path, name: str) -> str:
    """The file's encoding: UTF-8 with or without a byte order mark, or UTF-16 with one; none is guessed.

    Args:
        path: the file, whose size was checked; it is decoded once as a whole.
        name: for messages.

    Raises:
        RequestRejected: another format, a byte that is none of the encoding's, or a NUL character; says where.
    """
    data = path.read_bytes()
    for mark, what in _ARCHIVES.items():
        if data.startswith(mark):
            raise RequestRejected(f"{name!r} is {what}, no table of text: export it as CSV")
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        mark_bytes = 3 if data.startswith(b"\xef\xbb\xbf") else 0  # which the codec has cut off
        start = error.start + mark_bytes
        wrong = " ".join(f"0x{byte:02x}" for byte in data[start : error.end + mark_bytes][:4])
        raise RequestRejected(
            f"{name!r} is not {encoding.removesuffix('-sig').upper()}: {_end_of(data[:start].decode(encoding))}, byte "
            f"{start + 1:,}: {wrong}, {error.reason}; save it as UTF-8"
        ) from None
    if "\0" in text:
        before = text[: text.index("\0")]
        raise RequestRejected(f"{name!r} holds a NUL character in {_end_of(before)}: no text file")
    return encoding


def _end_of(text: str) -> str:
    """The line and the character that follow a text, in words."""
    return f"line {text.count(chr(10)) + 1:,}, character {len(text) - text.rfind(chr(10)):,}"


class Misquoted(RequestRejected):
    """A row of several lines whose quotes don't match."""


@dataclass(frozen=True, kw_only=True)
class CsvForm:
    """How a file separates and quotes cells.

    Args:
        delimiter: between cells.
        quoting: of the csv module: QUOTE_MINIMAL or QUOTE_NONE.
        backslashed: whether a quote inside quotes stands behind a backslash, as MySQL and others write it.
        hinted: whether the first line names the delimiter (`sep=;`) and is no row.
    """

    delimiter: str = ","
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL
    backslashed: bool = False
    hinted: bool = False

    @classmethod
    def of(cls, file: IO[str], delimiter: str | None = None) -> "CsvForm":
        """The form of a file that is at its start, where it is again afterwards.

        Args:
            file: opened with newline="".
            delimiter: the one that the file's kind has; None: the one by which most rows have as many cells as the
                first, of several the one with the most cells.
        """
        lines = list(islice(file, _JUDGED))
        file.seek(0)
        hint = _HINT.fullmatch(lines[0]) if lines else None
        if hint:
            lines, delimiter = lines[1:], hint[1]
        forms = [cls(delimiter=character, hinted=hint is not None) for character in delimiter or _DELIMITERS]
        escaped = any('\\"' in line for line in lines)
        if escaped:  # backslashes count where the lines can be read only so
            both = [(form, replace(form, backslashed=True)) for form in forms]
            forms = [max(pair, key=lambda form: form._is_well_quoted(lines)) for pair in both]
        return max(forms, key=lambda form: form._evenness(lines))

    def rows(self, file: IO[str]) -> Iterator[list[str]]:
        """The cells of each row. A row of several lines must be well quoted: an open quote would silently swallow the
        rows after it.

        Raises:
            Misquoted: while reading: it is not.
        """
        before = 1 if self.hinted else 0
        begins = before + 1
        lines: list[str] = []  # of the row that is being read

        def read() -> Iterator[str]:
            for line in islice(file, before, None):
                lines.append(line)
                yield line

        reader = self._reader(read())
        while True:
            begins += len(lines)
            lines.clear()
            try:
                row = next(reader, None)
                if len(lines) > 1:
                    next(self._reader(lines, strict=True))
            except csv.Error as error:
                what = "the row that begins here leaves a quote open, or has one inside a cell that is not doubled"
                if "limit" in str(error):
                    what = f"a cell of more than {csv.field_size_limit():,} characters; is a quote left open?"
                raise Misquoted(f"line {begins:,}: {what}") from None
            if row is None:
                return
            yield row

    def _reader(self, lines: Iterable[str], *, strict: bool = False) -> Iterator[list[str]]:
        if self.backslashed:
            lines = (_BACKSLASHED.sub(lambda mark: '""' if mark[1] == '"' else "\\", line) for line in lines)
        return csv.reader(lines, strict=strict, delimiter=self.delimiter, quoting=self.quoting)

    def _is_well_quoted(self, lines: list[str]) -> bool:
        """Whether the csv module reads the lines strictly. The last of them may begin a row of several lines."""
        try:
            for _ in self._reader(lines, strict=True):
                pass
        except csv.Error as error:
            return "unexpected end of data" in str(error) and len(lines) == _JUDGED
        return True

    def _evenness(self, lines: list[str]) -> tuple[bool, float, int]:
        """How well the form fits, to be compared: whether it makes columns, the share of even rows, a row's cells."""
        widths: list[int] = []
        with suppress(csv.Error):  # a cell that is too long, for which the file is refused later
            widths.extend(len(row) for row in self._reader(lines) if row)
        if not widths:
            return False, 0, 0
        first, *others = widths
        share = round(Counter(others)[first] / len(others), 1) if others else 1.0
        return first > 1 and share >= _LEAST_SHARE, share, first


def json_values(file: IO[str], name: str) -> Iterator[object]:
    """The rows of a file: of an array, of an object in one of pandas' orientations or around a list, or its lines.

    Args:
        file: at its start.
        name: for messages.

    Returns:
        An object for each row, or whatever else stands in its place, BLANK or BROKEN.

    Raises:
        RequestRejected: while reading: an array is damaged or not the only value, or an object holds several lists of
            rows. A damaged line is no error.
    """
    lines = (line for line in file if line.strip())
    begin, has_more = next(lines, ""), next(lines, None) is not None
    file.seek(0)
    if begin.lstrip().startswith("["):
        yield from _named(_items(file.read(), name))
        return
    if begin.lstrip().startswith("{") and not (has_more and _value(begin) is not BROKEN):
        whole = _object(file.read(), name)
        file.seek(0)
        if whole is not None:
            yield from _named(_rows_of(whole, name))
            return
    yield from map(_value, file)


def _object(text: str, name: str) -> dict[str, Any] | None:
    """The one object that a file is; None: it is none."""
    if text.count("{") + text.count("[") > _MOST_PARTS:  # each takes many times its characters
        raise RequestRejected(f"{name!r}: one JSON object of more than {_MOST_PARTS:,} lists and objects; split it")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _rows_of(value: dict[str, Any], name: str) -> Iterator[object]:
    """The rows that an object holds; the object itself where it is a row."""
    for _ in range(_DEEPEST):
        inside = next(iter(value.values()), None)
        if len(value) == 1 and isinstance(inside, dict) and any(isinstance(each, list) for each in inside.values()):
            value = inside
    columns, data, schema = value.get("columns"), value.get("data"), value.get("schema")
    if isinstance(columns, list) and isinstance(data, list):  # pandas' "split"
        names = [str(column) for column in columns]
        return (dict(zip(names, row, strict=False)) if isinstance(row, list) else row for row in data)
    if isinstance(schema, dict) and isinstance(data, list):  # pandas' "table", whose index is no column
        index = schema.get("primaryKey")
        left_out = {key for key in index if isinstance(key, str)} if isinstance(index, list) else set()
        return ({k: v for k, v in row.items() if k not in left_out} if isinstance(row, dict) else row for row in data)
    if any(isinstance(each, str) and key.strip().lower() in TEXT_NAMES for key, each in value.items()):
        return iter([value])
    lists = dict(_lists(value, _DEEPEST))
    if len(lists) > 1:
        several = ", ".join(list(lists)[:5])[:200]
        raise RequestRejected(f"{name!r} holds several lists of rows ({several}): keep one of them in a file")
    if lists:
        return iter(next(iter(lists.values())))
    each = list(value.values())
    if each and all(isinstance(column, list) for column in each):  # a list for each column
        return (dict(zip(value, row, strict=True)) for row in zip_longest(*each))
    if each and all(isinstance(inner, dict) for inner in each):
        return _columns(value) if _is_by_column(value) else iter(each)
    return iter([value])


def _lists(value: dict[str, Any], depth: int) -> Iterator[tuple[str, list[Any]]]:
    """The lists of objects or of lists in an object, with their paths."""
    for key, each in value.items():
        if isinstance(each, list) and each and isinstance(each[0], dict | list):
            yield key, each
        elif isinstance(each, dict) and depth:
            yield from ((f"{key}.{path}", found) for path, found in _lists(each, depth - 1))


def _is_by_column(value: dict[str, dict[str, Any]]) -> bool:
    """Whether an object of objects has a column in each, as pandas' "columns", and not a row, as its "index"."""
    first = next(iter(value.values()))
    outer, inner = all(map(_COUNT.fullmatch, value)), all(map(_COUNT.fullmatch, first))
    if outer != inner:
        return inner
    by_name = [any(key.strip().lower() in TEXT_NAMES for key in keys) for keys in (value, first)]
    if by_name[0] != by_name[1]:
        return by_name[0]
    return len(first) > len(value) and all(each.keys() == first.keys() for each in value.values())


def _columns(value: dict[str, dict[str, Any]]) -> Iterator[object]:
    for row in dict.fromkeys(key for column in value.values() for key in column):
        yield {name: column.get(row) for name, column in value.items()}


def _named(rows: Iterator[object]) -> Iterator[object]:
    """The rows; of lists, the first one gives the names of the others where it holds one that is known."""
    names: list[str] | None = None
    for number, row in enumerate(rows):
        if number == 0 and isinstance(row, list) and _is_head(row):
            names = row
            continue
        yield dict(zip(names, row, strict=False)) if names is not None and isinstance(row, list) else row


def _is_head(row: list[Any]) -> bool:
    texts = [cell.strip().lower() for cell in row if isinstance(cell, str)]
    return len(texts) == len(row) and any(text in TEXT_NAMES for text in texts)


def _value(line: str) -> object:
    if not line.strip():
        return BLANK
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return BROKEN


def _items(text: str, name: str) -> Iterator[object]:
    """An array's items, one by one: the whole array as Python values would be many times as large."""
    decoder = json.JSONDecoder()

    def damaged(at: int) -> RequestRejected:
        return RequestRejected(
            f"{name!r}: line {text.count(chr(10), 0, at) + 1:,}: its JSON array is damaged or goes on behind its end; "
            "write one array, or an object on each line"
        )

    at = _after_space(text, text.index("[") + 1)
    while not text.startswith("]", at):
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            raise damaged(at) from None
        yield value
        at = _after_space(text, end)
        if text.startswith(",", at):
            at = _after_space(text, at + 1)
        elif not text.startswith("]", at):
            raise damaged(at)
    if _after_space(text, at + 1) < len(text):
        raise damaged(at + 1)


def _after_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None
    return space.end()
