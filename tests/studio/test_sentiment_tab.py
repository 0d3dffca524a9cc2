"""The sentiment tab in a browser, with the embedded model."""

import csv
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from .conftest import LIMIT_MS, Studio, http, open_tab, settled
from .test_api import page_events

LIST_MS = 2 * LIMIT_MS


@pytest.fixture
def page(studio: Studio, revisit: Callable[..., Page]) -> Page:
    """The tab as the last test left it, at "One text"."""
    page = revisit(studio, tab="Sentiment")
    return open_tab(page, "One text")


def test_i_loved_it_is_positive(page: Page) -> None:
    page.locator("#sentiment-text textarea").fill("I loved it")
    page.locator("#classify").click()
    expect(page.locator("#sentiment-result h3")).to_have_text("positive")
    rows = page.locator("#sentiment-result .prob")
    expect(rows).to_have_count(3)
    settled(page)
    texts = rows.all_inner_texts()
    assert {re.search(r"[a-z]+", text)[0] for text in texts} == {"negative", "neutral", "positive"}
    assert 98 <= sum(int(re.search(r"(\d+)\s*%", text)[1]) for text in texts) <= 102
    expect(page.locator("#sentiment-result .note")).to_have_text(re.compile(r"[\d.]+ ms"))
    expect(page.get_by_role("status").filter(has_text=re.compile(r"positive \d+ %"))).to_be_attached()


def test_the_tab_says_which_model_judges(page: Page) -> None:
    head = page.locator("#sentiment-head")
    expect(head).to_contain_text("a demo model of 1.9\N{NO-BREAK SPACE}million parameters")
    expect(head).to_contain_text("negative, neutral and positive")
    head.get_by_role("button", name="Its model card").press("Enter")
    expect(head.get_by_text("What the labels mean")).to_be_visible()
    page.keyboard.press("Escape")
    expect(head.get_by_text("What the labels mean")).to_be_hidden()


def test_an_example_is_classified_at_once(page: Page) -> None:
    page.get_by_role("button", name="The soup was cold").click()
    expect(page.locator("#sentiment-result h3")).to_have_text("negative")


def test_empty_text_is_rejected(page: Page) -> None:
    page.locator("#sentiment-text textarea").fill("  ")
    page.locator("#classify").click()
    expect(page.get_by_text("is empty: type something first")).to_be_visible()
    expect(page.locator("#sentiment-text textarea")).to_have_value("  ")
    expect(page.locator("#sentiment-result")).to_contain_text("This text was not classified.")


def test_why(page: Page) -> None:
    """Red meant support for "positive". Words in order, the strongest at full colour, for by a solid line and
    against by a dashed one; another label is a press away."""
    page.locator("#sentiment-text textarea").fill("We loved the old museum.")
    page.locator("#sentiment-text textarea").press("Enter")
    expect(page.locator("#sentiment-result .prob")).to_have_count(3)
    page.locator("#sentiment-result").get_by_role("button", name="positive").press("Enter")
    words = page.locator("#sentiment-words .words")
    expect(page.locator("#sentiment-words h3")).to_have_text("What speaks for positive")
    expect(words).to_contain_text(re.compile(r"We\s+.*loved.*the\s+.*old.*museum"))
    settled(page)
    shown = words.locator("> span").evaluate_all(
        """spans => spans.map(span => [span.childNodes[0].data, Number(span.style.getPropertyValue("--a")),
        getComputedStyle(span).borderBottomStyle, span.querySelector(".sr")?.textContent ?? ""])"""
    )
    strength = {word: share for word, share, _, _ in shown}
    assert max(strength, key=strength.get) == "loved", shown
    lines = {word: (line, said) for word, _, line, said in shown}
    assert lines["loved"] == ("solid", " (for)")
    bars = page.locator("#sentiment-words table")
    expect(bars.get_by_role("row").filter(has_text="loved")).to_contain_text("+")
    positive = page.locator("#sentiment-result").get_by_role("button", name="positive")
    expect(positive).to_have_attribute("aria-pressed", "true")
    page.locator("#sentiment-result").get_by_role("button", name="negative").click()
    expect(page.locator("#sentiment-words h3")).to_have_text("What speaks for negative")
    against = words.locator("> span").filter(has_text="loved")
    expect(against).to_have_class(re.compile(r"\bn\b"))
    expect(against).to_have_css("border-bottom-style", "dashed")
    for word in ("logit", "padding"):
        expect(page.locator("#sentiment-tab")).not_to_contain_text(word)


def test_nothing_of_a_text_disappears(page: Page) -> None:
    text = "I loved <div> and i<b, {{x}} ${y} &amp; <script>alert(1)</script>"
    page.locator("#sentiment-text textarea").fill(text)
    page.locator("#why").click()
    expect(page.locator("#sentiment-words .words")).to_contain_text("script")
    settled(page)
    shown = page.locator("#sentiment-words .words").evaluate(
        "words => { const copy = words.cloneNode(true); copy.querySelectorAll('.sr').forEach(e => e.remove());"
        "return copy.textContent; }"
    )
    assert shown == text


def test_a_long_text_is_cut_visibly(page: Page) -> None:
    page.locator("#sentiment-text textarea").fill("A word " * 600)
    page.locator("#classify").click()
    expect(page.locator("#sentiment-result .note")).to_contain_text("first 512 tokens used")


def open_many(page: Page) -> None:
    open_tab(page, "Many texts")


def emptied(page: Page) -> Locator:
    """The field for a file, without the one that is there."""
    field = page.locator("#many-file")
    if field.get_by_role("button", name="Clear").count():
        field.get_by_role("button", name="Clear").click()
        expect(field.locator("input[type=file]")).to_be_attached()
        settled(page)
    return field


def bring(page: Page, file: Path) -> None:
    """Upload the file; it replaces another one."""
    field = emptied(page)
    field.locator("input[type=file]").set_input_files(file)


def downloaded(page: Page, folder: Path) -> list[dict[str, str]]:
    settled(page)  # the button has the file that belongs to what is shown
    with page.expect_download() as waiting:
        page.locator("#many-download").click()
    path = folder / "results.csv"
    waiting.value.save_as(path)
    assert waiting.value.suggested_filename == "sentiment.csv"
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def test_pasted_lines(page: Page, tmp_path: Path) -> None:
    """Table, chart, filter and download; a line that a spreadsheet would run is escaped in the download."""
    open_many(page)
    page.locator("#many-lines textarea").fill("I loved it\n\nThe food was awful.\n=1+1\nWe loved every minute.")
    page.locator("#classify-all").click()
    expect(page.locator("#many-progress")).to_contain_text("5 rows in")
    expect(page.locator("#many-table")).to_contain_text("We loved every minute.")
    expect(page.locator("#many-table")).to_contain_text("empty")
    parts = settled(page).locator("#many-labels .share i")
    colours = parts.evaluate_all("parts => parts.map(part => getComputedStyle(part).backgroundColor)")
    assert len(colours) == len(set(colours)) >= 2, "a colour for each label"
    expect(page.locator("#many-labels .key")).to_contain_text(re.compile(r"positive\s+[23]"))
    expect(page.get_by_role("img", name=re.compile("Texts by the probability of their label"))).to_be_visible()
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
    settled(page)
    expect(page.locator("#many-column input")).to_have_value("review")
    page.locator("#classify-all").click()
    expect(page.locator("#many-progress")).to_contain_text("3 rows in")
    expect(page.locator("#many-table")).to_contain_text("first 512 tokens used")
    expect(page.locator("#many-table")).to_contain_text("row has 2 cells instead of 3")
    page.locator("#many-column input").click()
    page.get_by_role("option", name="title").click()
    settled(page)
    page.locator("#classify-all").click()
    expect(page.locator("#many-table")).to_contain_text("Awful")
    assert downloaded(page, tmp_path)[0]["label"] == "negative"


def test_the_example_beside_its_labels_and_its_words(page: Page) -> None:
    """A press brings a file whose labels are found; the words say over how many texts they were computed."""
    open_many(page)
    emptied(page)
    page.get_by_role("button", name="Try a file of 40 short reviews").press("Enter")
    expect(page.locator("#many-progress")).to_contain_text("reviews.csv: 40 rows")
    expect(page.locator("#many-column input")).to_have_value("review")
    expect(page.locator("#many-truth input")).to_have_value("label")
    settled(page)
    page.locator("#classify-all").click()
    expect(page.locator("#many-progress")).to_contain_text("40 rows in")
    matrix = settled(page).get_by_role("table", name="Your labels in rows")
    cells = matrix.locator("tbody td b").all_inner_texts()
    assert (len(cells), sum(map(int, cells))) == (9, 40)
    expect(page.locator("#many-agreement header")).to_have_text(re.compile(r"[\d.]+ % agree: \d+ of 40 texts"))
    page.locator("#many-filter input").click()
    page.get_by_role("option", name=re.compile("where your label differs")).click()
    wrong = 40 - sum(map(int, matrix.locator("tbody td.right b").all_inner_texts()))
    expect(page.locator("#many-table td.other")).to_have_count(wrong)
    expect(page.locator("#many-table tbody tr")).to_have_count(wrong)
    page.locator("#find-words").click()
    words = page.locator("#list-words")
    # all of them, or those that a slow machine reads in the time that there is
    expect(words).to_contain_text(re.compile(r"over (40 texts|\d+ texts of 40, drawn at random)"), timeout=LIST_MS)
    expect(page.locator("#stop-words")).to_be_disabled(timeout=LIST_MS)
    bars = words.locator(".bars tbody tr")
    assert 2 <= bars.count() <= 12
    expect(bars.first).to_contain_text("+")
    expect(bars.last).to_contain_text("−")


def test_the_page_asks_what_numbers_mean(page: Page, tmp_path: Path) -> None:
    """0 and 1 were read as the ids of three labels, so that what was positive counted as neutral."""
    open_many(page)
    (tmp_path / "a.csv").write_text("text,label\n" + "I loved it,1\nIt was awful,0\n" * 2)
    bring(page, tmp_path / "a.csv")
    expect(page.locator("#many-truth input")).to_have_value("label")
    settled(page).locator("#classify-all").click()
    expect(page.locator("#many-progress")).to_contain_text("4 rows in")
    expect(page.locator("#many-agreement")).to_contain_text("It is not certain what the numbers in label mean")
    settled(page).locator("#many-meaning input").click()
    page.get_by_role("option", name="by their order: 0 is negative, 1 is positive").click()
    expect(page.locator("#many-agreement header")).to_contain_text("100.0 % agree: 4 of 4 texts")
    page.locator("#find-words").click()  # so few texts are all read, however slow the machine
    expect(page.locator("#list-words")).to_contain_text("over 4 texts", timeout=LIST_MS)
    expect(page.locator("#many-agreement")).to_contain_text("Numbers are read by their order: 0 is negative, 1 is pos")
    (tmp_path / "b.csv").write_text("text,label\nI loved it,1\nIt was awful,-1\n")
    bring(page, tmp_path / "b.csv")
    expect(page.locator("#many-progress")).to_contain_text("b.csv: 2 rows")
    settled(page).locator("#classify-all").click()
    expect(page.locator("#many-agreement header")).to_contain_text("100.0 % agree: 2 of 2 texts")


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


LONG = "This is a long review of a small hotel. " * 60 + "\n" + ("The stay was fine. " * 120 + "\n") * 3000


def begin_long_list(page: Page, folder: Path) -> None:
    path = folder / "long.txt"
    path.write_text(LONG)
    bring(page, path)
    expect(page.locator("#many-progress")).to_contain_text("long.txt: 3,001 rows")
    settled(page)
    page.locator("#classify-all").click()


@contextmanager
def long_list(studio: Studio, session: str) -> Iterator[None]:
    """Another visitor's long list, which is at work when the block begins; the visitor leaves at its end."""
    event = page_events(studio)["_run"]
    body = {"data": [None, LONG, None, True, None, ""], "fn_index": event, "session_hash": session}
    joined = http.post(f"{studio.url}/gradio_api/queue/join", json=body)
    assert joined.status_code == 200, joined.text
    with http.stream("GET", f"{studio.url}/gradio_api/queue/data", params={"session_hash": session}) as stream:
        lines = stream.iter_lines()  # a variable, because the connection ends when the iterator is collected
        next(line for line in lines if "of 3,001 rows" in line)
        yield


def test_a_third_list_waits_in_line_and_can_be_cancelled_there(studio: Studio, page: Page, tmp_path: Path) -> None:
    """It showed nothing while it waited, and the results of the previous list stayed, with this list's download."""
    open_many(page)
    emptied(page)
    page.locator("#many-lines textarea").fill("I loved it")
    page.locator("#classify-all").click()
    expect(page.locator("#many-results")).to_be_visible()
    with long_list(studio, "first-list"), long_list(studio, "second-list"):
        begin_long_list(page, tmp_path)
        expect(page.locator("#many-progress")).to_contain_text("Place 1 in line")
        expect(page.locator("#many-results")).to_be_hidden()
        page.locator("#many-cancel").click()
        expect(page.locator("#many-progress")).to_contain_text("Cancelled: 0 of 3,001 rows done")


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
    open_tab(page, "Your own labels")
    page.locator("#own-text textarea").fill("I want my money back, it broke after a day.")
    page.locator("#own-labels").locator("textarea, input").fill("refund request, praise, bug report")
    expect(page.get_by_text("was never trained for that")).to_be_visible()
    page.locator("#own-classify").click()
    shown = page.locator("#own-result .prob")
    expect(shown).to_have_count(3, timeout=LIST_MS)
    texts = settled(page).locator("#own-result .prob").all_inner_texts()
    assert {re.search(r"[a-z ]*[a-z]", text)[0] for text in texts} == {"refund request", "praise", "bug report"}
    assert 98 <= sum(int(re.search(r"(\d+)\s*%", text)[1]) for text in texts) <= 102
    page.locator("#own-labels").locator("textarea, input").fill("praise, Praise")
    page.locator("#own-classify").click()
    expect(page.get_by_text("is there twice")).to_be_visible()
