"""The tab Engine in a real browser."""

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from .conftest import Studio, asks_nothing, http

Visit = Callable[..., Page]
QUESTION = "Tell me about zebras."


def test_a_running_stream_is_a_busy_slot(slow_studio: Studio, revisit: Visit) -> None:
    page = revisit(slow_studio, tab="Engine")
    slots = page.locator("#engine-live .slot")
    expect(slots).to_have_count(2)
    slow_studio.wait_idle()
    data = [[{"role": "user", "content": QUESTION}], "", 450, 1.0, 1.0, 0, None, 0.0, 1.0, None]
    call = f"{slow_studio.url}/gradio_api/call/chat"
    event = http.post(call, json={"data": data}).json()["event_id"]
    with http.stream("GET", f"{call}/{event}") as stream:
        lines = stream.iter_lines()
        next(line for line in lines if '"tokens": 1' in line)
        busy = page.locator("#engine-live .slot.decode")
        expect(busy).to_have_count(1)
        stats = slow_studio.health()["chat_engine"]
        told = f"{stats['busy']} at work in the same step, {stats['slots'] - stats['busy']} free"
        expect(page.locator("#engine-live")).to_contain_text(told)
        expect(busy.locator("span").last).to_have_text(re.compile(r"\d"))
        before = int(busy.locator("span").last.inner_text())
        page.wait_for_function(
            "before => +document.querySelector('#engine-live .slot.decode span:last-child')?.innerText > before",
            arg=before,
        )
        expect(page.locator("#engine-live .kpi").first).to_contain_text(re.compile(r"Tokens a second\s*[\d.]*[1-9]"))
    slow_studio.wait_idle()
    expect(page.locator("#engine-live .slot.free")).to_have_count(2)
    expect(page.locator("#engine-live .slot.free", has_text="kept").first).to_be_visible()
    assert "zebra" not in page.locator("#engine-tab, #engine-live").first.inner_html()


def test_figures_are_those_of_health(slow_studio: Studio, revisit: Visit) -> None:
    page = revisit(slow_studio, tab="Engine")
    chat = slow_studio.health()["backends"]["chat"]
    rows = page.locator("#engine-programs tbody tr:not(.of)")
    expect(rows).to_have_count(chat["programs"])
    expect(page.locator("#engine-programs")).to_contain_text(f"{chat['programs']} in all")
    expect(page.locator("#engine-live .kpi").last).to_contain_text(f"{chat['model']} 0")
    expect(page.locator("#engine-live .memrow")).to_have_count(1)


def test_the_ladder_is_there_without_a_result(slow_studio: Studio, revisit: Visit) -> None:
    page = revisit(slow_studio, tab="Engine")
    card = page.locator("#engine-ladder")
    expect(card).to_contain_text("130.9 s")
    expect(card.get_by_role("table")).to_be_hidden()
    card.get_by_text("All figures as a table").click()
    expect(card.get_by_role("table")).to_contain_text("Eager, dynamic cache")


def test_a_page_whose_tab_is_closed_asks_nothing(slow_studio: Studio, revisit: Visit) -> None:
    page = revisit(slow_studio, tab="Engine")
    expect(page.locator("#engine-live .slot")).to_have_count(2)
    with page.expect_request("**/gradio_api/**"):
        """It asks while it is open."""
    page.get_by_role("tab", name="Chat").click()
    asks_nothing(page)
