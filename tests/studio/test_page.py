"""The page itself: warm-up, the status line, narrow screens.

Every visit also checks that the page sends no request to other hosts and logs no errors.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from .conftest import LIMIT_S, Studio, asks_nothing, http, reload, settled
from .test_accessibility import DRAWERS, at_rest


def test_not_ready_until_all_backends_are(studio: Studio) -> None:
    """/health says 503 while models load and compile, 200 afterwards."""
    early = studio.early_health[0]
    assert (early.status_code, early.json()["status"]) == (503, "warming up")
    late = http.get(f"{studio.url}/health")
    assert (late.status_code, late.json()["status"]) == (200, "ready")
    assert {backend["state"] for backend in late.json()["backends"].values()} == {"ready"}


def test_an_idle_server_rests(studio: Studio) -> None:
    """Its event loop wakes up some hundred times a second and not thousands, which would slow down the models."""

    def woken() -> int:
        status = Path(f"/proc/{studio.process.pid}/status").read_text()
        return int(dict(line.split(":", 1) for line in status.splitlines())["voluntary_ctxt_switches"])

    def wakes() -> float:
        before, started = woken(), time.monotonic()
        time.sleep(1)
        return (woken() - before) / (time.monotonic() - started)

    deadline = time.monotonic() + LIMIT_S
    while (found := wakes()) >= 400:  # what the test before has left is done soon
        assert time.monotonic() < deadline, found


def test_ready_after_a_first_answer(studio: Studio) -> None:
    """Each model is asked once, and /ready is their sum."""
    for path in ("/live", "/ready", "/ready/chat", "/ready/sentiment", "/ready/images"):
        assert http.get(f"{studio.url}{path}").status_code == 200, path
    unknown = http.get(f"{studio.url}/ready/music")
    assert (unknown.status_code, unknown.json()["detail"]) == (
        404,
        "there are /ready/chat, /ready/sentiment, /ready/images",
    )


def test_the_address_is_printed_once(studio: Studio) -> None:
    assert studio.output.read_text().count(studio.url) == 1


def test_the_status_line_names_device_and_models(studio: Studio, revisit: Callable[..., Page]) -> None:
    page = revisit(studio)
    line = page.locator("#status-line")
    expect(line).to_contain_text("device CPU")
    expect(line).to_contain_text("chat-gemma")
    expect(line.locator(".chip.ready")).to_have_count(4)
    for tab, control in (("Chat", "#message"), ("Sentiment", "#classify"), ("Images", "#generate")):
        page.get_by_role("tab", name=tab).click()
        expect(page.locator(control)).to_be_visible()


@pytest.mark.parametrize("state", ["waiting", "loading", "compiling", "failed"])
def test_the_status_line_is_a_line_in_every_state(state: str, studio: Studio, revisit: Callable[..., Page]) -> None:
    """A chip's state is a CSS class that other parts of the page may style too."""
    page = revisit(studio)
    page.locator("#status-line .state").click()
    chip = page.locator("#status-line .chip.ready").first
    expect(chip).to_be_visible()
    settled(page)
    height = chip.bounding_box()["height"]
    set_state = "(chip, state) => { chip.className = `chip ${state}`; }"
    chip.evaluate(set_state, state)
    assert page.locator(f"#status-line .chip.{state}").bounding_box()["height"] == height
    page.locator(f"#status-line .chip.{state}").evaluate(set_state, "ready")
    page.keyboard.press("Escape")
    expect(chip).to_be_hidden()


def test_polling_ends_when_all_backends_are_settled(studio: Studio, revisit: Callable[..., Page]) -> None:
    page = reload(revisit(studio))
    expect(page.locator("#status-line .chip.ready")).to_have_count(4)
    asks_nothing(page)


def test_a_page_gets_a_ready_backends_values_once(studio: Studio) -> None:
    """A page polls every second while another backend warms up; values that its visitor has chosen meanwhile stay.

    Tabs that were never opened get nothing.
    """
    dependencies = http.get(f"{studio.url}/config").json()["dependencies"]
    poll = next(each for each in dependencies if {"load", "tick"} <= {event for _, event in each["targets"]})

    def answer(page: str, opened: str = "chat images") -> list[Any]:
        data = [None, opened]
        call = {"fn_index": poll["id"], "data": data, "session_hash": page, "trigger_id": poll["targets"][0][0]}
        return http.post(f"{studio.url}/gradio_api/run/predict", json=call).json()["data"]

    unopened = answer("one", "chat")
    first, second, another = answer("one"), answer("one"), answer("another")
    controls = [at for at, update in enumerate(first) if {"value", "choices"} <= {*(update or {})}]
    assert controls, "schedulers and sizes come from the backend"
    untouched = [at for at, update in enumerate(unopened) if update == {"__type__": "update"}]
    assert {*controls} < {*untouched}
    assert answer("third", "chat music") == unopened
    assert [first[at] for at in untouched] == [another[at] for at in untouched]
    assert all(second[at] == {"__type__": "update"} for at in controls)


def test_an_idle_page_leaves_the_processor_alone(studio: Studio, revisit: Callable[..., Page]) -> None:
    """Gradio's trackers count an event's seconds in every frame, sixty a second, and some never stop."""
    page = revisit(studio)
    page.add_init_script(
        """window.frames_drawn = 0
        const request = window.requestAnimationFrame.bind(window)
        window.requestAnimationFrame = draw => request(at => { frames_drawn++; draw(at) })"""
    )
    reload(page)
    expect(page.locator("#status-line .chip.ready")).to_have_count(4)
    page.wait_for_function(  # in some second after the page has been drawn
        "() => { const drawn = frames_drawn; frames_drawn = 0; return 0 < drawn && drawn <= 5 }", polling=1000
    )


@pytest.mark.parametrize("tab", ["Chat", "Sentiment", "Images"])
def test_nothing_overflows_on_a_phone(studio: Studio, revisit: Callable[..., Page], tab: str) -> None:
    page = revisit(studio, width=390, tab=tab)
    expect(page.locator("#status-line .chip.ready")).to_have_count(4)
    expect(page.get_by_role("tabpanel").locator("textarea:visible").first).to_be_visible()
    if tab == "Sentiment":  # they come a moment later
        expect(page.locator("#sentiment-examples .gallery-item").first).to_be_visible()
    settled(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    too_wide = page.evaluate(  # the examples are a row that scrolls by itself, and as wide as the page
        """() => [...document.querySelectorAll('main *')]
            .filter(element => !element.closest('#sentiment-examples .gallery-item'))
            .filter(element => element.checkVisibility() && element.getBoundingClientRect().right > 391)
            .map(element => element.outerHTML.slice(0, 120))"""
    )
    assert too_wide == []
    if tab != "Chat":
        return
    for drawer, panel in DRAWERS.items():
        page.get_by_role("button", name=drawer, exact=True).click()
        expect(page.locator(panel)).to_be_visible()
        at_rest(page)
        box = page.locator(panel).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
        page.keyboard.press("Escape")
        expect(page.locator("#chat-left, #chat-settings").locator("visible=true")).to_have_count(0)
