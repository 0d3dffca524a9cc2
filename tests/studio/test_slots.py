"""Long answers stream to several visitors, and every way to end one frees its slot long before it would have ended."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from .conftest import Studio, http, load, settled, watch
from .test_chat_tab import Visit, answers, box, cleared, notes, questions

MOST = 450  # tokens of an answer, which takes seconds
ANSWER = "#conversation [data-testid=bot]:not(:has(small.note))"
LONGER = "([found, length]) => document.querySelector(found).innerText.length > length"


@pytest.fixture
def page(slow_studio: Studio, revisit: Visit) -> Page:
    return cleared(revisit(slow_studio))


@contextmanager
def freed(studio: Studio) -> Iterator[None]:
    """The block begins one answer and ends it: its slot is free before all of it was made."""
    before = studio.wait_idle()["tokens"]
    yield
    assert studio.wait_idle()["tokens"] - before < MOST


def prepare(page: Page) -> None:
    """Allow long answers."""
    number, slider = (page.locator(f"#max-tokens input[type={kind}]") for kind in ("number", "range"))
    number.fill(str(MOST))
    number.blur()
    expect(slider).to_have_value(str(MOST))  # number and slider both show the value that is sent
    settled(page)


def begin(page: Page, text: str = "Tell me a story.") -> None:
    """Ask for a long answer, and wait for its first part."""
    prepare(page)
    box(page).fill(text)
    box(page).press("Enter")
    expect(notes(page).last).to_contain_text(re.compile(r"\d tokens"))


def stop(page: Page) -> None:
    page.locator("#message .stop-button").click()


def test_an_answer_grows_on_the_page(slow_studio: Studio, page: Page) -> None:
    """With the slow model: the embedded one can finish before the page has painted a second time."""
    with freed(slow_studio):
        begin(page)
        for _ in range(3):
            length = len(answers(page).first.inner_text())
            page.wait_for_function(LONGER, arg=[ANSWER, length])
        stop(page)


def test_stop_frees_the_slot_and_keeps_the_text(slow_studio: Studio, page: Page) -> None:
    with freed(slow_studio):
        begin(page)
        expect(answers(page)).to_have_text(re.compile(r"\S"))  # some tokens have no visible text
        slow_studio.wait_busy()
        stop(page)
    expect(notes(page)).to_contain_text("stopped")
    expect(answers(page).first).to_have_text(re.compile(r"\S"))
    with freed(slow_studio):
        begin(page, "Go on.")
        expect(questions(page)).to_have_count(2)
        slow_studio.wait_busy()
        stop(page)


def test_stop_ends_a_retry_and_an_edit(slow_studio: Studio, page: Page) -> None:
    """Gradio's own chat interface does not cancel the answer to an edited message."""
    with freed(slow_studio):
        begin(page)
        stop(page)
    expect(notes(page)).to_contain_text("stopped")
    with freed(slow_studio):
        page.get_by_role("button", name="Retry").click()
        slow_studio.wait_busy()
        expect(page.locator("#message .stop-button")).to_be_visible()
        page.keyboard.press("Escape")
    expect(notes(page)).to_contain_text("stopped")
    with freed(slow_studio):
        page.get_by_role("button", name="Edit question").click()
        page.locator("#conversation textarea").fill("Another story.")
        page.get_by_role("button", name="Submit").click()
        slow_studio.wait_busy()
        stop(page)


@contextmanager
def held_back(page: Page) -> Iterator[None]:
    """The page's cancellations reach the server at the end of the block: a slow network, to which more pieces come."""
    held: list[Route] = []
    page.route("**/cancel", lambda route: held.append(route))
    yield
    for route in held:
        route.continue_()
    page.unroute("**/cancel")


def test_an_answer_that_grows_after_stop_ends_as_stopped(slow_studio: Studio, page: Page) -> None:
    with freed(slow_studio):
        begin(page)
        with held_back(page):
            stop(page)
            length = len(answers(page).first.inner_text())
            page.wait_for_function(LONGER, arg=[ANSWER, length])
    expect(notes(page)).to_contain_text("stopped")
    expect(answers(page).first).to_have_text(re.compile(r"\S"))


def test_pieces_of_an_answer_do_not_come_into_another_conversation(slow_studio: Studio, page: Page) -> None:
    with freed(slow_studio):
        begin(page)
        page.evaluate("lengths = []; studio.chat.on('changed', () => lengths.push(studio.chat.value.length))")
        with held_back(page):
            page.get_by_role("button", name="New chat").click()
            page.wait_for_function("lengths.includes(0) && lengths.at(-1)")  # a late piece
    expect(questions(page)).to_have_count(0)
    settled(page)
    expect(questions(page)).to_have_count(0)


def test_clear_in_the_middle_frees_the_slot(slow_studio: Studio, page: Page) -> None:
    with freed(slow_studio):
        begin(page)
        page.get_by_role("button", name="New chat").click()
    expect(questions(page)).to_have_count(0)


def test_a_closed_tab_frees_the_slot(slow_studio: Studio, visit: Visit) -> None:
    page = visit(slow_studio)
    with freed(slow_studio):
        begin(page)
        slow_studio.wait_busy()
        page.close()


def test_a_reload_frees_the_slot_and_keeps_the_conversation(slow_studio: Studio, browser: Browser) -> None:
    """On a page that may log errors, because Gradio logs one when a reload interrupts a stream."""
    page = load(watch(browser.new_page()), slow_studio.url)
    with freed(slow_studio):
        begin(page)
        expect(answers(page)).to_have_text(re.compile(r"\S"))
        slow_studio.wait_busy()
        page.reload()
    settled(page)
    expect(questions(page)).to_have_text("Tell me a story.")
    expect(answers(page)).to_have_text(re.compile(r"\S"))
    expect(notes(page)).to_contain_text("stopped")
    page.close()


@contextmanager
def streamed(studio: Studio) -> Iterator[Iterator[str]]:
    """The lines of a long answer, whose reader leaves at the end of the block."""
    data = [[{"role": "user", "content": "Tell me a story."}], "", MOST, 1.0, 1.0, 0, None, 0.0, 1.0, None]
    call = f"{studio.url}/gradio_api/call/chat"
    event = http.post(call, json={"data": data}).json()["event_id"]
    with http.stream("GET", f"{call}/{event}") as stream:
        yield stream.iter_lines()  # a variable of the caller: the connection ends when it is collected


def reach(lines: Iterator[str], tokens: int) -> None:
    """Read until the answer has as many tokens."""
    next(line for line in lines if (found := re.search(r'"tokens": (\d+)', line)) and int(found[1]) >= tokens)


def test_a_lost_connection_frees_the_slot(slow_studio: Studio) -> None:
    """An API client disconnects in the middle of a stream."""
    with freed(slow_studio), streamed(slow_studio) as lines:
        reach(lines, 1)
        slow_studio.wait_busy()


def test_two_visitors_stream_at_the_same_time_and_the_third_waits_in_line(slow_studio: Studio, page: Page) -> None:
    """The server has two slots. Two answers grow at the same time; the third shows its place until one ends."""
    prepare(page)
    before = slow_studio.wait_idle()["tokens"]
    with streamed(slow_studio) as second:
        with streamed(slow_studio) as first:
            for lines in (first, second):
                reach(lines, 1)
            box(page).fill("Hello!")
            box(page).press("Enter")
            expect(notes(page)).to_have_text("place 1 in line")
            slow_studio.wait_busy(2)
            both = slow_studio.health()["chat_engine"]["tokens"] - before
            for lines in (first, second):
                reach(lines, both + 1)  # more than both had together
            expect(notes(page)).to_have_text("place 1 in line")
        expect(notes(page)).to_contain_text("first token")
        stop(page)
    slow_studio.wait_idle()


@pytest.mark.parametrize(("tab", "model"), [("Sentiment", "no-sentiment"), ("Images", "no-images")])
def test_a_tab_whose_model_failed_says_why_and_stays_closed(
    slow_studio: Studio, revisit: Visit, tab: str, model: str
) -> None:
    page = revisit(slow_studio, tab=tab)
    expect(page.get_by_role("tabpanel").get_by_text(f"{model} can't be used")).to_be_visible()
    expect(settled(page).locator("#classify:visible, #generate:visible")).to_have_count(0)
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
