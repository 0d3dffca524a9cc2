"""The sentiment tab in a browser, with the embedded model."""

import csv
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from .conftest import Studio

LIST_MS = 60_000


@pytest.fixture
def page(studio: Studio, revisit: Callable[..., Page]) -> Page:
    """The tab as the last test left it, at "One text"."""
    page = revisit(studio, tab="Sentiment")
    page.get_by_role("tab", name="One text").click()
    return page


def test_i_loved_it_is_positive(page: Page) -> None:
    page.locator("#sentiment-text textarea").fill("I loved it")
    page.locator("#classify").click()
    expect(page.locator("#sentiment-label h2")).to_have_text("positive")
    rows = page.locator("#sentiment-label .confidence-set")
    expect(rows).to_have_count(3)
    texts = rows.all_inner_texts()
    assert {re.search(r"[a-z]+", text)[0] for text in texts} == {"negative", "neutral", "positive"}
    assert 98 <= sum(int(re.search(r"(\d+)\s*%", text)[1]) for text in texts) <= 102
    expect(page.locator("#sentiment-time")).to_have_text(re.compile(r"[\d.]+ ms"))


def test_an_example_is_classified_at_once(page: Page) -> None:
    page.get_by_role("button", name="The soup was cold").click()
    expect(page.locator("#sentiment-label h2")).to_have_text("negative")


def test_empty_text_is_rejected(page: Page) -> None:
    page.locator("#sentiment-text textarea").fill("  ")
    page.locator("#classify").click()
    expect(page.get_by_text("is empty: type something first")).to_be_visible()
    expect(page.locator("#sentiment-text textarea")).to_have_value("  ")


def test_why(page: Page) -> None:
    """Words in order, the strongest at full colour; a click on another label explains that one."""
    page.locator("#sentiment-text textarea").fill("We loved the old museum.")
    page.locator("#why").click()
    words = page.locator("#sentiment-words")
    expect(words).to_contain_text(re.compile(r"We\s+loved\s+the\s+old\s+museum\s*\."))
    expect(page.locator("#sentiment-reason")).to_contain_text("towards positive")
    expect(page.locator("#sentiment-label h2")).to_have_text("positive")
    expect(words.locator(".score-token.highlighted").first).to_be_visible()
    colours = words.locator(".score-token.highlighted").evaluate_all(
        "spans => spans.map(span => [span.innerText.trim(), getComputedStyle(span).backgroundColor])"
    )
    strength = {word: float([*re.findall(r"[\d.]+", colour), "1"][3]) for word, colour in colours}
    assert max(strength, key=strength.get) == "loved", colours
    page.locator("#sentiment-label").get_by_text("negative").click()
    expect(page.locator("#sentiment-reason")).to_contain_text("towards negative")


def test_a_long_text_is_cut_visibly(page: Page) -> None:
    page.locator("#sentiment-text textarea").fill("A word " * 600)
    page.locator("#classify").click()
    expect(page.locator("#sentiment-time")).to_contain_text("first 512 tokens used")


def open_many(page: Page) -> None:
    page.get_by_role("tab", name="Many texts").click()


def bring(page: Page, file: Path) -> None:
    """Upload the file; it replaces another one."""
    field = page.locator("#many-file")
    if field.get_by_role("button", name="Clear").count():
        field.get_by_role("button", name="Clear").click()
    field.locator("input[type=file]").set_input_files(file)


def downloaded(page: Page, folder: Path) -> list[dict[str, str]]:
    with page.expect_download() as waiting:
        page.locator("#many-download").click()
    path = folder / "results.csv"
    waiting.value.save_as(path)
    assert waiting.value.suggested_filename == "sentiment.csv"
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def test_pasted_lines(page: Page, tmp_path: Path) -> None:
    """Table, charts, filter and download; a line that a spreadsheet would run is escaped in the download."""
    open_many(page)
    page.locator("#many-lines textarea").fill("I loved it\n\nThe food was awful.\n=1+1\nWe loved every minute.")
    page.locator("#classify-all").click()
    expect(page.locator("#many-progress")).to_contain_text("5 rows in")
    expect(page.locator("#many-table")).to_contain_text("We loved every minute.")
    expect(page.locator("#many-table")).to_contain_text("empty")
    expect(page.locator("#many-labels canvas, #many-labels svg").first).to_be_visible()
    expect(page.locator("#many-confidence canvas, #many-confidence svg").first).to_be_visible()
    lines = downloaded(page, tmp_path)
    assert [line["row"] for line in lines] == ["1", "2", "3", "4", "5"]
    assert [line["label"] for line in lines[:3]] == ["positive", "", "negative"]
    assert lines[1]["note"] == "empty"
    assert lines[3]["text"] == "'=1+1"
    page.locator("#many-filter input").click()
    page.get_by_role("option", name=re.compile("positive")).click()
    expect(page.locator("#many-count")).to_contain_text(re.compile(r"\b[23] rows"))
    expect(page.locator("#many-table")).not_to_contain_text("The food was awful.")
    assert {line["label"] for line in downloaded(page, tmp_path)} == {"positive"}


def test_a_csv_file_with_a_column_picker(page: Page, tmp_path: Path) -> None:
    """The likely column is preselected, another can be chosen; cut and ragged rows have a note."""
    path = tmp_path / "reviews.csv"
    path.write_text(f"id,title,review\n1,Awful,I loved it\n2,Great,{'A word ' * 600}\n3,Fine\n")
    open_many(page)
    bring(page, path)
    expect(page.locator("#many-progress")).to_contain_text("reviews.csv: 3 rows")
    expect(page.locator("#many-column input")).to_have_value("review")
    page.locator("#classify-all").click()
    expect(page.locator("#many-progress")).to_contain_text("3 rows in")
    expect(page.locator("#many-table")).to_contain_text("first 512 tokens used")
    expect(page.locator("#many-table")).to_contain_text("row has 2 cells instead of 3")
    page.locator("#many-column input").click()
    page.get_by_role("option", name="title").click()
    page.locator("#classify-all").click()
    expect(page.locator("#many-table")).to_contain_text("Awful")
    assert downloaded(page, tmp_path)[0]["label"] == "negative"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", b"PK\x03\x04" + b"\0" * 100, "is a zip archive"),
        ("a.csv", "text\ncaf\xe9\n".encode("latin-1"), "is not UTF-8"),
        ("a.txt", b"\n" * 200_000, "more than 100,000 rows"),
    ],
)
def test_bad_files_are_rejected(page: Page, tmp_path: Path, name: str, content: bytes, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    open_many(page)
    bring(page, path)
    expect(page.get_by_text(says)).to_be_visible()


def begin_long_list(page: Page, folder: Path) -> None:
    path = folder / "long.txt"
    path.write_text(
        "This is a long review of a small hotel. " * 60 + "\n" + ("The stay was fine. " * 120 + "\n") * 3000
    )
    bring(page, path)
    expect(page.locator("#many-progress")).to_contain_text("long.txt: 3,001 rows")
    page.locator("#classify-all").click()


def test_a_third_list_waits_in_line_and_can_be_cancelled_there(
    studio: Studio, page: Page, visit: Callable[..., Page], tmp_path: Path
) -> None:
    """It showed nothing while it waited, and the results of the previous list stayed, with this list's download."""
    pages = [page, *(visit(studio, tab="Sentiment") for _ in range(2))]
    for page in pages:
        open_many(page)
    third = pages[2]
    third.locator("#many-lines textarea").fill("I loved it")
    third.locator("#classify-all").click()
    expect(third.locator("#many-results")).to_be_visible()
    for page in pages[:2]:
        begin_long_list(page, tmp_path)
        expect(page.locator("#many-progress")).to_contain_text("of 3,001 rows", timeout=LIST_MS)
    begin_long_list(third, tmp_path)
    expect(third.locator("#many-progress")).to_contain_text("Place 1 in line")
    expect(third.locator("#many-results")).to_be_hidden()
    third.locator("#many-cancel").click()
    expect(third.locator("#many-progress")).to_contain_text("Cancelled: 0 of 3,001 rows done")
    for page in pages[:2]:
        page.locator("#many-cancel").click()
        expect(page.locator("#many-progress")).to_contain_text("Cancelled", timeout=LIST_MS)


def test_cancel_keeps_what_is_done(page: Page, tmp_path: Path) -> None:
    """Long texts take a while; rows that were classified before Cancel are in the table and in the download."""
    open_many(page)
    begin_long_list(page, tmp_path)
    expect(page.locator("#many-progress")).to_contain_text("of 3,001 rows", timeout=LIST_MS)
    page.locator("#many-cancel").click()
    expect(page.locator("#many-progress")).to_contain_text("Cancelled", timeout=LIST_MS)
    done = int(re.search(r"Cancelled: ([\d,]+) of", page.locator("#many-progress").inner_text())[1].replace(",", ""))
    assert 0 < done < 3001
    assert len(downloaded(page, tmp_path)) == done
    expect(page.locator("#classify-all")).to_be_enabled()
    expect(page.locator("#many-cancel")).to_be_disabled()


def test_zero_shot(page: Page) -> None:
    """The chat model gives the probabilities of all labels; a label that is there twice is rejected."""
    page.get_by_role("tab", name="Your own labels").click()
    page.wait_for_timeout(500)  # opened for the first time, Gradio mounts the fields and sets their values
    page.locator("#own-text textarea").fill("I want my money back, it broke after a day.")
    page.locator("#own-labels").locator("textarea, input").fill("refund request, praise, bug report")
    page.locator("#own-classify").click()
    expect(page.get_by_text("was never trained for that")).to_be_visible()
    shown = page.locator("#own-label .confidence-set")
    expect(shown).to_have_count(3, timeout=LIST_MS)
    texts = shown.all_inner_texts()
    assert {re.search(r"[a-z ]*[a-z]", text)[0] for text in texts} == {"refund request", "praise", "bug report"}
    assert 98 <= sum(int(re.search(r"(\d+)\s*%", text)[1]) for text in texts) <= 102
    page.locator("#own-labels").locator("textarea, input").fill("praise, Praise")
    page.locator("#own-classify").click()
    expect(page.get_by_text("is there twice")).to_be_visible()
