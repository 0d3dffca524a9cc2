"""Every tab in both themes by axe-core's rules, all of them, and what such rules can't see: zoom, reduced motion."""

import re
from collections.abc import Callable
from pathlib import Path

import axe_playwright_python
import pytest
from playwright.sync_api import Page, expect

from .conftest import Studio, open_tab, settled
from .test_chat_tab import ask, cleared

AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
RULES = """axe.run(document, {resultTypes: ["violations"]}).then(({violations}) => violations.map(
    ({id, impact, nodes}) => `${impact} ${id}: ${nodes.map(node => node.html.slice(0, 200)).join(" | ")}`))"""
THEMES = ("light", "dark")
MOVING = "document.getAnimations().filter(animation => animation.effect.getComputedTiming().duration > 1).length"
CONTROLS = {"Sentiment": "#classify", "Images": "#generate", "Engine": "#engine-live .memory"}  # of each other tab
DRAWERS = {"Conversations": "#chat-left", "Settings": "#chat-settings"}


@pytest.fixture
def page(studio: Studio, revisit: Callable[..., Page]) -> Page:
    return cleared(revisit(studio))


def at_rest(page: Page) -> None:
    """Wait until the page is drawn, and colours and sizes change no more; some marks move for ever."""
    settled(page)
    page.wait_for_function(
        "document.getAnimations().every(each => each.playState !== 'running' || each.effect.getTiming().iterations > 9)"
    )


def still(page: Page, selector: str, style: str) -> str:
    """A style of the first such element, when it changes no more."""
    at_rest(page)
    return page.locator(selector).first.evaluate("(element, style) => getComputedStyle(element)[style]", style)


def violations(page: Page) -> list[str]:
    """Of the page as it is drawn: colours change softly, and axe would measure half a change."""
    at_rest(page)
    if not page.evaluate("window.axe !== undefined"):
        page.evaluate(AXE)
    return page.evaluate(RULES)


def in_theme(page: Page, theme: str) -> None:
    if page.evaluate("document.body.classList.contains('dark')") != (theme == "dark"):
        page.get_by_role("button", name="Light or dark").click()
    expect(page.locator("body")).to_have_class(
        re.compile(r"\bdark\b") if theme == "dark" else re.compile(r"^(?!.*dark)")
    )


@pytest.mark.parametrize("theme", THEMES)
def test_the_chat_has_no_violations(page: Page, theme: str) -> None:
    in_theme(page, theme)
    assert violations(page) == []
    ask(page, "What is `<div>` in JAX?")
    page.get_by_role("button", name="Edit question").click()
    page.locator("#status-line .state").click()
    expect(page.locator("#models-state")).to_be_visible()
    assert violations(page) == []
    page.keyboard.press("Escape")


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(("tab", "control"), CONTROLS.items())
def test_a_tab_has_no_violations(page: Page, theme: str, tab: str, control: str) -> None:
    open_tab(page, tab)
    expect(page.locator(control)).to_be_visible()
    in_theme(page, theme)
    assert violations(page) == []


def test_results_of_the_sentiment_tab_have_no_violations(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "four.csv"
    path.write_text("text,label\nI loved it,pos\nAwful,neg\nThe train leaves at nine,neu\n,pos\n")
    open_tab(page, "Sentiment")
    open_tab(page, "Many texts")
    page.locator("#many-file input[type=file]").set_input_files(path)
    expect(page.locator("#many-truth input")).to_have_value("label")
    page.locator("#classify-all").click()
    expect(page.locator("#many-agreement table")).to_be_visible()
    page.locator("#find-words").click()
    expect(page.locator("#list-words .bars")).to_be_visible()
    open_tab(page, "One text")
    page.locator("#sentiment-text textarea").fill("A great cast, but the ending was terrible.")
    page.locator("#why").click()
    expect(page.locator("#sentiment-words .words")).to_be_visible()
    for theme in THEMES:
        in_theme(page, theme)
        assert violations(page) == []
        open_tab(page, "Many texts")
        assert violations(page) == []
        open_tab(page, "One text")


@pytest.mark.parametrize("drawer", DRAWERS)
def test_a_drawer_has_no_violations(studio: Studio, revisit: Callable[..., Page], drawer: str) -> None:
    page = revisit(studio, width=390)
    page.get_by_role("button", name=drawer, exact=True).click()
    expect(page.locator(DRAWERS[drawer])).to_be_visible()
    assert violations(page) == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name=drawer, exact=True)).to_be_focused()


@pytest.mark.parametrize("tab", ["Chat", "Sentiment", "Images", "Engine"])
def test_nothing_scrolls_sideways_at_twice_the_size(page: Page, tab: str) -> None:
    """A window of 1280 pixels at 200 % has 640."""
    open_tab(page, tab)
    page.set_viewport_size({"width": 640, "height": 450})
    try:
        settled(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 640
    finally:
        page.set_viewport_size({"width": 1280, "height": 900})


def test_nothing_moves_for_who_asks_for_that(page: Page) -> None:
    page.emulate_media(reduced_motion="reduce")
    page.evaluate("document.querySelector('.brand .mark').classList.add('wave')")
    try:
        page.wait_for_function(f"{MOVING} === 0")
    finally:
        page.emulate_media(reduced_motion="no-preference")
    page.wait_for_function(f"{MOVING} > 0")
    page.evaluate("document.querySelector('.brand .mark').classList.remove('wave')")
