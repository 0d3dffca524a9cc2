"""Files and pasted lines, as users have them and as attackers make them."""

import itertools
import json
import random
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hfjax_app.errors import RequestRejected
from hfjax_app.limits import TABLE_MAX_BYTES, TABLE_MAX_ROWS
from hfjax_app.sentiment import table
from hfjax_app.sentiment.table import Cell, opened, pasted


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def texts(source: table.Table, column: str | None = None) -> list[str]:
    return [cell.text for cell in source.cells(column or source.likely)]


def test_pasted_lines() -> None:
    source = pasted("I loved it\n\nThe end \r\nlast\n")
    assert source.rows == 4
    assert texts(source) == ["I loved it", "", "The end ", "last"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", 'id,Review,stars\n1,"good, really\ngood",5\n2,"she said ""no""",1\n'),
        ("a.csv", 'id;Review;stars\r\n1;"good, really\ngood";5\r\n2;"she said ""no""";1\r\n'),
        ("a.tsv", 'id\tReview\tstars\n1\t"good, really\ngood"\t5\n2\t"she said ""no"""\t1\n'),
        ("A.CSV", b"\xef\xbb\xbf" + b'id,Review,stars\n1,"good, really\ngood",5\n2,"she said ""no""",1'),
        ("a.csv", 'id,Review,stars\n1,"good, really\ngood",5\n2,"she said ""no""",1\n'.encode("utf-16")),
        (
            "a.jsonl",
            '{"id": 1, "Review": "good, really\\ngood"}\n{"id": 2, "Review": "she said \\"no\\"", "stars": 1}\n',
        ),
    ],
)
def test_the_same_table_in_every_format(tmp_path: Path, name: str, content: str | bytes) -> None:
    """Delimiters, quotes, line ends, UTF-16 and marks; the column called review is offered first."""
    source = opened(write(tmp_path, name, content))
    assert source.columns == ("id", "Review", "stars")
    assert source.likely == "Review"
    assert source.rows == 2
    assert texts(source) == ["good, really\ngood", 'she said "no"']


@pytest.mark.parametrize("hint", ["sep=;", "SEP=;", '"sep=;"', "sep=;;;"])
def test_excel_s_line_with_the_separator_is_no_row(tmp_path: Path, hint: str) -> None:
    """It was the header, of one column, and every row was ragged."""
    source = opened(write(tmp_path, "a.csv", f"\ufeff{hint}\r\nid;Review\r\n1;Good, or so\r\n2;Cold, soup\r\n"))
    assert source.columns == ("id", "Review")
    assert [cell.row for cell in source.cells("Review")] == [("1", "Good, or so"), ("2", "Cold, soup")]
    assert not any(cell.note for cell in source.cells("id"))
    tabs = opened(write(tmp_path, "b.csv", "sep=\t\n1\tgood\n"), has_header=False)
    assert texts(tabs) == ["good"]
    with pytest.raises(RequestRejected, match="line 3: the row that begins here leaves a quote open"):
        opened(write(tmp_path, "a.csv", f'{hint}\nid;Review\n1;"open\n2;x\n'))


@pytest.mark.parametrize(
    ("content", "columns", "found"),
    [
        ("id;good, bad, or ugly\n1;so, so\n2;no\n", ("id", "good, bad, or ugly"), ["so, so", "no"]),
        ('"What, in\nshort";stars\nyes;1\nno, no;2\n', ("What, in short", "stars"), ["yes", "no, no"]),
        ("id|text\n1|a, b; c\n2|d, e; f\n", ("id", "text"), ["a, b; c", "d, e; f"]),
        ("text\nwell, yes; or no\nwell\n", ("text",), ["well, yes; or no", "well"]),
        ('id,text\n1,"a;b"\n2,"c;d"\n', ("id", "text"), ["a;b", "c;d"]),
    ],
)
def test_the_delimiter_is_the_one_that_makes_even_rows(
    tmp_path: Path, content: str, columns: tuple[str, ...], found: list[str]
) -> None:
    """The most frequent character of the first line was taken."""
    source = opened(write(tmp_path, "a.csv", content))
    assert source.columns == columns
    assert texts(source, columns[-1] if columns[0] == "id" else columns[0]) == found


ESCAPED, DOUBLED = r'0,"\"a\", b"', '0,"""a"", b"'


@pytest.mark.parametrize(
    ("other", "cell", "text"),
    [
        (ESCAPED, r'"she said \"no\", twice"', 'she said "no", twice'),
        (ESCAPED, r'"she said \"no\" twice"', 'she said "no" twice'),
        (ESCAPED, r'"in C:\\"', "in C:\\"),
        (DOUBLED, r'"in ""C:\"', 'in "C:\\'),
    ],
)
def test_quotes_behind_backslashes(tmp_path: Path, other: str, cell: str, text: str) -> None:
    """As MySQL writes them; a backslash in a file that doubles its quotes is text."""
    source = opened(write(tmp_path, "a.csv", f"id,text\n{other}\n1,{cell}\n"))
    assert texts(source, "text") == ['"a", b', text]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_one_array_of_json(tmp_path: Path, name: str) -> None:
    """Each of its lines was "not a line of JSON"."""
    rows = [{"id": 1, "text": "fine"}, {"text": "so\nso", "tags": ["x"]}, "plain", 7]
    source = opened(write(tmp_path, name, "\n" + json.dumps(rows, indent=2)))
    assert source.columns == ("id", "text", "tags", "line")
    assert [cell.text for cell in source.cells("text")] == ["fine", "so\nso", "", ""]
    assert [cell.row for cell in source.cells("text")][:3] == [
        ("1", "fine", "", ""), ("", "so\nso", '["x"]', ""), ("", "", "", "plain"),
    ]  # fmt: skip
    assert opened(write(tmp_path, name, json.dumps(rows))).rows == 4


ROWS = [{"id": 1, "Review": "good, really\ngood", "stars": 5}, {"id": 2, "Review": 'she said "no"', "stars": 1}]


def in_pandas(**options: Any) -> Any:
    return json.loads(pd.DataFrame(ROWS).to_json(**options))


@pytest.mark.parametrize(
    "content",
    [
        *(in_pandas(orient=orient) for orient in ("records", "split", "index", "columns", "table")),
        pd.DataFrame(ROWS, index=["first", "second"]).to_dict("index"),
        pd.DataFrame(ROWS, index=["first", "second"]).to_dict("dict"),
        pd.DataFrame(ROWS).to_dict("list"),
        pd.DataFrame(ROWS).to_dict("tight"),
        {"rows": ROWS},
        {"count": 2, "next": None, "results": ROWS},
        {"response": {"status": {"code": 0}, "docs": ROWS}},
        {"result": in_pandas(orient="split")},
        {"values": [[*ROWS[0]], *(list(row.values()) for row in ROWS)]},
        [[*ROWS[0]], *(list(row.values()) for row in ROWS)],
    ],
    ids=lambda content: json.dumps(content)[:40],
)
@pytest.mark.parametrize("indent", [None, 2], ids=["in a line", "in many"])
def test_json_of_every_form_is_the_same_table(tmp_path: Path, content: Any, indent: int | None) -> None:
    """Each of pandas' orientations, and objects around the rows: their lines were "not a line of JSON"."""
    source = opened(write(tmp_path, "a.json", json.dumps(content, indent=indent)))
    assert (source.columns, source.likely, source.rows) == (("id", "Review", "stars"), "Review", 2)
    assert [cell.row for cell in source.cells("Review")] == [
        tuple(value if isinstance(value, str) else str(value) for value in row.values()) for row in ROWS
    ]
    assert not any(cell.note for cell in source.cells("Review"))


def test_json_of_pandas_values_and_lines(tmp_path: Path) -> None:
    frame = pd.DataFrame(ROWS)
    values = opened(write(tmp_path, "a.json", frame.to_json(orient="values")))
    assert (values.columns, values.likely) == (("column 1", "column 2", "column 3"), "column 2")
    assert texts(values) == [row["Review"] for row in ROWS]
    lines = opened(write(tmp_path, "b.json", frame.to_json(orient="records", lines=True)))
    assert texts(lines) == texts(values)
    one = opened(write(tmp_path, "a.jsonl", json.dumps({"text": "fine", "tags": [{"a": 1}]})))
    assert (one.rows, texts(one)) == (1, ["fine"])


def test_objects_in_rows_are_columns(tmp_path: Path) -> None:
    """As the hub's viewer of datasets gives them."""
    rows = [{"row_idx": at, "row": {"text": text, "of": {"label": at}}, "cells": []} for at, text in enumerate("ab")]
    source = opened(write(tmp_path, "a.json", json.dumps({"features": [], "rows": rows})))
    assert source.columns == ("row_idx", "row.text", "row.of.label", "cells")
    assert (source.likely, texts(source)) == ("row.text", ["a", "b"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"train": ROWS, "test": ROWS}, r"several lists of rows \(train, test\): keep one of them in a file"),
        ({"rows": []}, "hold no JSON objects|holds no rows"),
        ({"a": 1}, None),
        ({}, "hold no JSON objects"),
        ({"columns": [], "data": []}, "holds no rows"),
    ],
)
def test_objects_around_no_rows_or_several(tmp_path: Path, content: Any, said: str | None) -> None:
    path = write(tmp_path, "a.json", json.dumps(content))
    if said is None:
        assert opened(path).rows == 1
        return
    with pytest.raises(RequestRejected, match=said):
        opened(path)


@pytest.mark.slow
def test_any_json_is_read_or_refused_in_one_line(tmp_path: Path) -> None:
    """Values of all kinds inside each other, and texts of them with parts left out."""
    draw = random.Random(0)

    def value(depth: int) -> Any:
        kind = draw.randint(0, 9 if depth else 5)
        if kind > 7:
            return [value(depth - 1) for _ in range(draw.randint(0, 4))]
        if kind > 5:
            names = ("text", "0", "1", "data", "columns", "schema", "index", "a.b", "", "\ud800", "label")
            return {draw.choice(names): value(depth - 1) for _ in range(draw.randint(0, 4))}
        return draw.choice([None, True, 1, -2.5, 10**30, "text", "I loved it", "", "\0", "\ud83d", float("nan")])

    for _ in range(3_000):
        content = json.dumps(value(5), indent=draw.choice([None, 1]))
        if draw.random() < 0.3:
            at = draw.randint(0, len(content))
            content = content[:at] + content[at + draw.randint(0, 3) :]
        path = write(tmp_path, draw.choice(["a.json", "a.jsonl"]), content)
        try:
            source = opened(path)
            cells = [cell for column in source.columns for cell in source.cells(column)]
        except RequestRejected as error:
            said = str(error)
        else:
            said = "".join(cell.note for cell in cells)
            assert all(isinstance(each, str) for cell in cells for each in cell.row)
        assert "\n" not in said


LARGE = """
import resource, sys
from pathlib import Path
from hfjax_app.errors import RequestRejected
from hfjax_app.sentiment.table import opened
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
try:
    source = opened(Path(sys.argv[1]))
    print(sum(1 for _ in source.cells(source.likely)))
except RequestRejected as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"a":[' + "[],".join([""] * 3_000_000) + "[]]}", "more than 1,000,000 lists and objects"),
        ('{"a":' * 500_000, "hold no JSON objects"),
        ("[" + ",".join(f'{{"a{at}":1}}' for at in range(600_000)) + "]", "more than 100,000 rows"),
        ("{" + ",".join(f'"{at}":{{"a{at}":1}}' for at in range(400_000)) + "}", "more than 100,000 rows"),
        ('{"a":[' + ",".join(["1"] * 5_000_000) + "]}", "more than 100,000 rows"),
        ('{"columns":["a"],"data":[' + ",".join(["[1]"] * 900_000) + "]}", "more than 100,000 rows"),
    ],
    ids=["lists", "deep", "array", "index", "numbers", "split"],
)
def test_large_json_takes_little_memory(tmp_path: Path, content: str, said: str) -> None:
    path = write(tmp_path, "a.json", content[:TABLE_MAX_BYTES])
    done = subprocess.run([sys.executable, "-c", LARGE, str(path)], text=True, capture_output=True, check=True)
    assert said in done.stdout


def test_without_a_header(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "1,a text that is long\n2,another one\n")
    source = opened(path, has_header=False)
    assert source.columns == ("column 1", "column 2")
    assert source.likely == "column 2"
    assert source.rows == 2
    assert texts(source) == ["a text that is long", "another one"]
    assert opened(path).rows == 1


def test_repeated_and_missing_names(tmp_path: Path) -> None:
    source = opened(write(tmp_path, "a.csv", "x,x,,\n1,2,3,4\n"))
    assert source.columns == ("x", "x 2", "column 3", "column 4")
    assert texts(source, "column 4") == ["4"]


@pytest.mark.parametrize(
    ("header", "columns"),
    [("x 3,x,x", ("x 3", "x", "x 4")), ("column 2,", ("column 2", "column 3")), ("x,x,x 2", ("x", "x 3", "x 2"))],
)
def test_a_number_makes_a_name_that_no_other_column_has(tmp_path: Path, header: str, columns: tuple[str, ...]) -> None:
    """Two columns had the same name, and a user who chose the second got the texts of the first."""
    source = opened(write(tmp_path, "a.csv", f"{header}\n{','.join('012'[: len(columns)])}\n"))
    assert source.columns == columns
    assert [texts(source, column) for column in columns] == [[str(at)] for at in range(len(columns))]


def test_keys_that_no_page_can_show_are_no_columns(tmp_path: Path) -> None:
    """Half of a surrogate pair led to an error without a message."""
    keys = '{"\\ud800": "no", "": "no", "' + "k" * 2000 + '": "no", "Review\u00a0Text": "fine"}\n'
    assert opened(write(tmp_path, "a.jsonl", keys)).columns == ("Review\u00a0Text",)


def test_quotes_in_a_file_of_tabs_that_quotes_nothing(tmp_path: Path) -> None:
    """Fifty rows became part of a cell that began with a quote."""
    lines = [f"{number}\tfine" for number in range(100)]
    lines[10], lines[60] = '10\t"Wow, they said', '60\t"No" is all I say'
    source = opened(write(tmp_path, "a.tsv", "\n".join(["id\ttext", *lines])))
    assert source.rows == 100
    found = texts(source, "text")
    assert (found[10], found[60], found[99]) == ('"Wow, they said', '"No" is all I say', "fine")


def test_a_carelessly_quoted_cell_stays_a_cell(tmp_path: Path) -> None:
    source = opened(write(tmp_path, "a.csv", 'id,text\n1,"so" they said\n2,"the end" \n'))
    assert texts(source, "text") == ["so they said", "the end "]


def test_ragged_and_empty_rows_stay_and_are_marked(tmp_path: Path) -> None:
    source = opened(write(tmp_path, "a.csv", "id,text\n1,fine\n\n2\n3,one,two\n4,\n"))
    assert list(source.cells("text")) == [
        Cell(text="fine", row=("1", "fine")),
        Cell(text="", row=("", "")),
        Cell(text="", note="row has 1 cells instead of 2", row=("2", "")),
        Cell(text="one", note="row has 3 cells instead of 2", row=("3", "one")),
        Cell(text="", row=("4", "")),
    ]
    assert source.rows == 5


def test_lines_of_json_that_are_not_what_they_should_be(tmp_path: Path) -> None:
    lines = ['{"text": "fine"}', "{broken", '{"other": 1}', '{"text": 7}', '["x"]', "", "[" * 100_000, "9" * 5000]
    source = opened(write(tmp_path, "a.jsonl", "\n".join(lines)))
    cells = list(source.cells("text"))
    assert source.rows == len(cells) == 8
    assert [cell.text for cell in cells] == ["fine", *[""] * 7]
    notes = ["", "not a line", "no 'text'", "is int, not text", "no 'text'", "", "not a line", "not a line"]
    assert all(note in cell.note and bool(note) == bool(cell.note) for note, cell in zip(notes, cells, strict=True))


def test_a_zip_renamed_to_csv(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "text\nhello\n")
    with pytest.raises(RequestRejected, match=r"'a\.csv' is a zip archive"):
        opened(path)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.exe", "x", "must end in one of .csv"),
        ("a", "x", "must end in one of .csv"),
        ("a.csv", "", "first row is empty"),
        ("a.csv", "text\n", "holds no rows"),
        ("a.txt", "", "holds no rows"),
        ("a.csv", "\n\nx", "first row is empty"),
        ("a.csv", "text\ncaf\xe9 cr\xe8me\n".encode("latin-1"), "is not UTF-8.*save it as UTF-8"),
        ("a.csv", b"x" * 70_000 + "\né, café\n".encode() + b"ab\xe9c\n", "line 3, character 3, byte 70,014: 0xe9, inv"),
        ("a.csv", b"\xef\xbb\xbfab\xff", "line 1, character 3, byte 6: 0xff"),
        ("a.csv", b"\xff\xfe" + b"a\0b\0c", "is not UTF-16: line 1, character 3, byte 7: 0x63"),
        ("a.csv", b"text\na\0b\n", "NUL character in line 2, character 2"),
        ("a.csv", 'text\n"Wow, they said\n' + "y\n" * 100, "line 2: the row that begins here leaves a quote open"),
        ("a.csv", 'text\n"Wow\n' + "y\n" * 100 + '"No" is all\n', "line 2: the row that begins here leaves a quote"),
        ("a.csv", "text\n" + "x" * 200_000, "line 2: a cell of more than 131,072 characters"),
        ("a.csv", 'text\n"never closed\n' + "y\n" * 100_000, "is a quote left open"),
        ("a.csv", ",".join(f"c{i}" for i in range(300)) + "\n1" + ",1" * 299, "300 columns: at most 256"),
        ("a.jsonl", "1\n2\n", "no JSON objects"),
        ("a.json", '[{"text": "a"},\n {"text": "b"]', "line 2: its JSON array is damaged"),
        ("a.json", '[{"text": "a"}]\n[{"text": "b"}]', "line 1: its JSON array .* goes on behind its end"),
        ("a.jsonl", "[" * 100_000, "line 1: its JSON array is damaged"),
        ("a.jsonl", "[" + "{}," * 200_000, "more than 100,000 rows"),
        ("a.jsonl", json.dumps({f"k{i}": "x" for i in range(300)}), "300 fields: at most 256"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, name: str, content: str | bytes, says: str) -> None:
    with pytest.raises(RequestRejected, match=says) as caught:
        opened(write(tmp_path, name, content))
    assert "\n" not in str(caught.value)


def test_a_cell_of_100_megabytes_is_refused_by_its_size(tmp_path: Path) -> None:
    """The file is sparse and is not read."""
    path = tmp_path / "a.csv"
    with path.open("wb") as file:
        file.truncate(100 << 20)
    with pytest.raises(RequestRejected, match="has 104,857,600 bytes: at most 10,485,760"):
        opened(path)


def test_ten_million_rows_are_refused_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """10^7 empty lines fit the size limit; counting stops one row above the row limit."""
    seen = []
    lines = table._lines
    monkeypatch.setattr(table, "_lines", lambda file: (seen.append(1) or line for line in lines(file)))
    with pytest.raises(RequestRejected, match="more than 100,000 rows"):
        opened(write(tmp_path, "a.txt", b"\n" * 10_000_000))
    assert len(seen) == TABLE_MAX_ROWS + 1
    with pytest.raises(RequestRejected, match="more than 100,000 rows"):
        pasted("x\n" * 1_000_000)


@pytest.mark.parametrize(("text", "says"), [(None, "must be lines"), (7, "must be lines"), (" \n", "no texts")])
def test_pastes_that_are_refused(text: object, says: str) -> None:
    with pytest.raises(RequestRejected, match=says):
        pasted(text)
    with pytest.raises(RequestRejected, match="at most 10,485,760"):
        pasted("x" * (TABLE_MAX_BYTES + 1))


def test_a_column_that_does_not_exist() -> None:
    with pytest.raises(RequestRejected, match="column 'x': must be one of line"):
        pasted("a").cells("x")


def test_cells_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    """A large table is not loaded first: the first row comes at once."""
    source = opened(write(tmp_path, "a.csv", "text\n" + "row\n" * 99_999))
    events = itertools.count()
    sys.setprofile(lambda *_: next(events))
    try:
        assert next(iter(source.cells("text"))).text == "row"
    finally:
        sys.setprofile(None)
    assert next(events) < 10_000
