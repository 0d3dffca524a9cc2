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
from itertools import islice
from pathlib import Path
from typing import IO, Literal

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
    """A value on each line, BLANK or BROKEN; or the items of one array, where the file is one.

    Args:
        file: at its start.
        name: for messages.

    Raises:
        RequestRejected: while reading: an array is damaged, or is not the only value. A damaged line is no error.
    """
    begin = next((line for line in file if line.strip()), "")
    file.seek(0)
    if begin.lstrip().startswith("["):
        yield from _items(file.read(), name)
    else:
        yield from map(_value, file)


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
