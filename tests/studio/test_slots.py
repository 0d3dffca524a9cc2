"""Long answers stream to several visitors, and every way to end one frees its slot within two seconds."""

import re
import time

import pytest
from playwright.sync_api import Browser, Page, expect

from .conftest import Studio, http
from .test_chat_tab import Visit, answers, box, cleared, notes, questions


@pytest.fixture
def page(slow_studio: Studio, revisit: Visit) -> Page:
    return cleared(revisit(slow_studio))


def prepare(page: Page) -> None:
    """Allow long answers."""
    number, slider = (page.locator(f"#max-tokens input[type={kind}]") for kind in ("number", "range"))
    expect(slider).to_be_visible()
    if slider.input_value() != "450":
        for _ in range(10):  # Gradio drops input while it is still building the page
            number.fill("450")
            number.blur()
            page.wait_for_timeout(300)
            if slider.input_value() == "450":  # number and slider both show the value that is sent
                break
        expect(slider).to_have_value("450")


def begin(page: Page, text: str = "Tell me a story.") -> None:
    """Ask for a long answer, and wait for its first part."""
    prepare(page)
    box(page).fill(text)
    box(page).press("Enter")
    expect(notes(page).last).to_contain_text(re.compile(r"\d tokens"), timeout=30_000)


def tokens(page: Page) -> int:
    return int(re.search(r"([\d,]+) tokens(?!/)", notes(page).last.inner_text())[1].replace(",", ""))


def stop(page: Page) -> None:
    page.locator("#message .stop-button").click()


def test_an_answer_grows_on_the_page(slow_studio: Studio, page: Page) -> None:
    """With the slow model: the embedded one can finish before the page has painted a second time."""
    begin(page)
    for _ in range(3):
        length = len(answers(page).first.inner_text())
        page.wait_for_function(
            "([found, length]) => document.querySelector(found).innerText.length > length",
            arg=["#conversation [data-testid=bot]:not(:has(small.note))", length],
            timeout=30_000,
        )
    stop(page)
    slow_studio.wait_idle()


def test_stop_frees_the_slot_and_keeps_the_text(slow_studio: Studio, page: Page) -> None:
    begin(page)
    expect(answers(page)).to_have_text(re.compile(r"\S"), timeout=30_000)  # some tokens have no visible text
    slow_studio.wait_busy()
    stop(page)
    slow_studio.wait_idle()
    expect(notes(page)).to_contain_text("stopped")
    assert answers(page).first.inner_text()
    made = tokens(page)
    begin(page, "Go on.")
    expect(questions(page)).to_have_count(2)
    slow_studio.wait_busy()
    stop(page)
    slow_studio.wait_idle()
    assert made < 450


def test_stop_ends_a_retry_and_an_edit(slow_studio: Studio, page: Page) -> None:
    """Gradio's own chat interface does not cancel the answer to an edited message."""
    begin(page)
    stop(page)
    slow_studio.wait_idle()
    page.get_by_role("button", name="Retry").click()
    slow_studio.wait_busy()
    expect(page.locator("#message .stop-button")).to_be_visible()
    page.keyboard.press("Escape")
    slow_studio.wait_idle()
    expect(notes(page)).to_contain_text("stopped")
    page.get_by_role("button", name="Edit question").click()
    page.locator("#conversation textarea").fill("Another story.")
    page.get_by_role("button", name="Submit").click()
    slow_studio.wait_busy()
    stop(page)
    slow_studio.wait_idle()


def test_clear_in_the_middle_frees_the_slot(slow_studio: Studio, page: Page) -> None:
    begin(page)
    page.get_by_role("button", name="New chat").click()
    slow_studio.wait_idle()
    expect(questions(page)).to_have_count(0)


def test_a_closed_tab_frees_the_slot(slow_studio: Studio, visit: Visit) -> None:
    page = visit(slow_studio)
    begin(page)
    slow_studio.wait_busy()
    page.close()
    slow_studio.wait_idle()


def test_a_reload_frees_the_slot_and_keeps_the_conversation(slow_studio: Studio, browser: Browser) -> None:
    """On a page that may log errors, because Gradio logs one when a reload interrupts a stream."""
    page = browser.new_page()
    page.goto(slow_studio.url)
    begin(page)
    expect(answers(page)).to_have_text(re.compile(r"\S"), timeout=30_000)
    slow_studio.wait_busy()
    page.reload()
    slow_studio.wait_idle()
    expect(questions(page)).to_have_text("Tell me a story.")
    expect(answers(page)).to_have_text(re.compile(r"\S"))
    expect(notes(page)).to_contain_text("stopped")
    page.close()


def test_a_lost_connection_frees_the_slot(slow_studio: Studio) -> None:
    """An API client disconnects in the middle of a stream."""
    data = [[{"role": "user", "content": "Tell me a story."}], "", 450, 1.0, 1.0, 0, None, 0.0, 1.0, None]
    call = f"{slow_studio.url}/gradio_api/call/chat"
    event = http.post(call, json={"data": data}).json()["event_id"]
    with http.stream("GET", f"{call}/{event}", timeout=30) as stream:
        lines = stream.iter_lines()  # a variable, because the connection ends when the iterator is collected
        next(line for line in lines if '"tokens": 1' in line)
        slow_studio.wait_busy()
    slow_studio.wait_idle()


def test_two_visitors_stream_at_the_same_time_and_the_third_waits_in_line(
    slow_studio: Studio, page: Page, visit: Visit
) -> None:
    """The server has two slots. Two answers grow at the same time; the third shows its place until one stops."""
    first, second, third = page, visit(slow_studio), visit(slow_studio)
    for page in (first, second):  # before the answers start, which share the processor with the browser
        prepare(page)
    box(third).fill("Hello!")
    begin(first)
    begin(second)
    before = tokens(first), tokens(second)
    slow_studio.wait_busy(2)
    box(third).press("Enter")
    expect(notes(third)).to_have_text("place 1 in line", timeout=15_000)
    deadline = time.monotonic() + 30
    while tokens(first) <= before[0] or tokens(second) <= before[1]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    slow_studio.wait_busy(2)
    expect(notes(third)).to_have_text("place 1 in line")
    stop(first)
    expect(notes(third)).to_contain_text("first token", timeout=10_000)
    for page in (second, third):
        stop(page)
    slow_studio.wait_idle()


@pytest.mark.parametrize(("tab", "model"), [("Sentiment", "no-sentiment"), ("Images", "no-images")])
def test_a_tab_whose_model_failed_says_why_and_stays_closed(
    slow_studio: Studio, revisit: Visit, tab: str, model: str
) -> None:
    page = revisit(slow_studio, tab=tab)
    expect(page.get_by_role("tabpanel").get_by_text(f"{model} can't be used")).to_be_visible()
    assert page.locator("#classify:visible, #generate:visible").count() == 0
    response = http.get(f"{slow_studio.url}/health")
    assert (response.status_code, response.json()["status"]) == (503, "failed")
    ready = http.get(f"{slow_studio.url}/ready/{tab.lower()}")
    assert (ready.status_code, list(ready.json()["reasons"])) == (503, [tab.lower()])
    assert http.get(f"{slow_studio.url}/ready/chat").status_code == 200
    assert http.get(f"{slow_studio.url}/ready").status_code == 503
    failed = response.json()["backends"][tab.lower()]
    assert failed["model"] == model
    assert model in failed["error"]
    assert "missing0" not in response.text + page.content(), "a model folder is shown by its name"
