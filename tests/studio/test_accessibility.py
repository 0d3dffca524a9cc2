"""Every tab in both themes by axe-core's rules, all of them, and what such rules can't see: zoom, reduced motion."""

import re
from collections.abc import Callable
from pathlib import Path

import axe_playwright_python
import pytest
from playwright.sync_api import Page, expect

from .conftest import Studio
from .test_chat_tab import ask, cleared

AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
RULES = """axe.run(document, {resultTypes: ["violations"]}).then(({violations}) => violations.map(
    ({id, impact, nodes}) => `${impact} ${id}: ${nodes.map(node => node.html.slice(0, 200)).join(" | ")}`))"""
THEMES = ("light", "dark")
CONTROLS = {"Sentiment": "#classify", "Images": "#generate", "Engine": "#engine-live .memory"}  # of each other tab


@pytest.fixture
def page(studio: Studio, revisit: Callable[..., Page]) -> Page:
    return cleared(revisit(studio))


def violations(page: Page) -> list[str]:
    if not page.evaluate("window.axe !== undefined"):
        page.evaluate(AXE)
    return page.evaluate(RULES)


def in_theme(page: Page, theme: str) -> None:
    if page.evaluate("document.body.classList.contains('dark')") != (theme == "dark"):
        page.get_by_role("button", name="Light or dark").click()
    expect(page.locator("body")).to_have_class(
        re.compile(r"\bdark\b") if theme == "dark" else re.compile(r"^(?!.*dark)")
    )
    page.wait_for_timeout(300)  # colours change softly, and axe would measure half a change


@pytest.mark.parametrize("theme", THEMES)
def test_the_chat_has_no_violations(page: Page, theme: str) -> None:
    in_theme(page, theme)
    assert violations(page) == []
    ask(page, "What is `<div>` in JAX?")
    page.get_by_role("button", name="Edit question").click()
    page.locator("#status-line .state").click()
    assert violations(page) == []
    page.keyboard.press("Escape")


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(("tab", "control"), CONTROLS.items())
def test_a_tab_has_no_violations(page: Page, theme: str, tab: str, control: str) -> None:
    page.get_by_role("tab", name=tab).click()
    expect(page.locator(control)).to_be_visible()
    in_theme(page, theme)
    assert violations(page) == []


def test_results_of_the_sentiment_tab_have_no_violations(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "four.csv"
    path.write_text("text,label\nI loved it,pos\nAwful,neg\nThe train leaves at nine,neu\n,pos\n")
    page.get_by_role("tab", name="Sentiment").click()
    page.get_by_role("tab", name="Many texts").click()
    page.locator("#many-file input[type=file]").set_input_files(path)
    expect(page.locator("#many-truth input")).to_have_value("label")
    page.locator("#classify-all").click()
    expect(page.locator("#many-agreement table")).to_be_visible()
    page.locator("#find-words").click()
    expect(page.locator("#list-words .bars")).to_be_visible()
    page.get_by_role("tab", name="One text").click()
    page.locator("#sentiment-text textarea").fill("A great cast, but the ending was terrible.")
    page.locator("#why").click()
    expect(page.locator("#sentiment-words .words")).to_be_visible()
    for theme in THEMES:
        in_theme(page, theme)
        assert violations(page) == []
        page.get_by_role("tab", name="Many texts").click()
        assert violations(page) == []
        page.get_by_role("tab", name="One text").click()


@pytest.mark.parametrize("drawer", ["Conversations", "Settings"])
def test_a_drawer_has_no_violations(studio: Studio, revisit: Callable[..., Page], drawer: str) -> None:
    page = revisit(studio, width=390)
    page.get_by_role("button", name=drawer, exact=True).click()
    assert violations(page) == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name=drawer, exact=True)).to_be_focused()


@pytest.mark.parametrize("tab", ["Chat", "Sentiment", "Images", "Engine"])
def test_nothing_scrolls_sideways_at_twice_the_size(page: Page, tab: str) -> None:
    """A window of 1280 pixels at 200 % has 640."""
    page.get_by_role("tab", name=tab).click()
    page.set_viewport_size({"width": 640, "height": 450})
    try:
        assert page.evaluate("document.documentElement.scrollWidth") <= 640
    finally:
        page.set_viewport_size({"width": 1280, "height": 900})


def test_nothing_moves_for_who_asks_for_that(page: Page) -> None:
    page.emulate_media(reduced_motion="reduce")
    moving = "document.getAnimations().filter(animation => animation.effect.getComputedTiming().duration > 1).length"
    page.evaluate("document.querySelector('.brand .mark').classList.add('wave')")
    try:
        assert page.evaluate(moving) == 0
    finally:
        page.emulate_media(reduced_motion="no-preference")
    assert page.evaluate(moving) > 0
    page.evaluate("document.querySelector('.brand .mark').classList.remove('wave')")
