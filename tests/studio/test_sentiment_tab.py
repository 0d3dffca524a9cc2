"""The sentiment tab in a browser, with the embedded model."""

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from .conftest import Studio


def test_i_loved_it_is_positive(studio: Studio, visit: Callable[..., Page]) -> None:
    page = visit(studio, tab="Sentiment")
    page.locator("#sentiment-text textarea").fill("I loved it")
    page.locator("#classify").click()
    expect(page.locator("#sentiment-label h2")).to_have_text("positive")
    rows = page.locator("#sentiment-label .confidence-set")
    expect(rows).to_have_count(3)
    texts = rows.all_inner_texts()
    assert {re.search(r"[a-z]+", text)[0] for text in texts} == {"negative", "neutral", "positive"}
    assert 98 <= sum(int(re.search(r"(\d+)\s*%", text)[1]) for text in texts) <= 102
    expect(page.locator("#sentiment-time")).to_have_text(re.compile(r"[\d.]+ ms"))


def test_an_example_is_classified_at_once(studio: Studio, visit: Callable[..., Page]) -> None:
    page = visit(studio, tab="Sentiment")
    page.get_by_role("button", name="The soup was cold").click()
    expect(page.locator("#sentiment-label h2")).to_have_text("negative")


def test_empty_text_is_refused(studio: Studio, visit: Callable[..., Page]) -> None:
    page = visit(studio, tab="Sentiment")
    page.locator("#sentiment-text textarea").fill("  ")
    page.locator("#classify").click()
    expect(page.get_by_text("is empty: type something first")).to_be_visible()
    expect(page.locator("#sentiment-text textarea")).to_have_value("  ")
