"""The encoding of a text file. None is guessed: UTF-8 with or without a byte order mark, UTF-16 with one."""

from pathlib import Path

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


def encoding_of(path: Path, name: str) -> str:
    """The file's encoding; the whole file, whose size was checked, is decoded once.

    Args:
        path: the file.
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
            f"{name!r} is not {encoding.removesuffix('-sig').upper()}: {_place(data[:start].decode(encoding))}, byte "
            f"{start + 1:,}: {wrong}, {error.reason}; save it as UTF-8"
        ) from None
    if "\0" in text:
        before = text[: text.index("\0")]
        raise RequestRejected(f"{name!r} holds a NUL character in {_place(before)}: no text file")
    return encoding


def _place(before: str) -> str:
    """The line and the character that follow some text, in words."""
    return f"line {before.count(chr(10)) + 1:,}, character {len(before) - before.rfind(chr(10)):,}"
