"""The studio in a browser, through the ingress."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.studio.conftest import CHROMIUM, FLAGS, load, open_tab, running, settled, watch

from .conftest import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ANSWER_MS = 120_000


@pytest.fixture
def page(cluster: Cluster) -> Iterator[Page]:
    if not CHROMIUM.exists():
        pytest.skip(f"browser tests need Debian's chromium at {CHROMIUM}: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = watch(browser.new_page())
        faults: list[str] = []
        page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        load(page, cluster.url)
        yield page
        browser.close()
    assert faults == []


def test_the_studio_chats_judges_and_draws(page: Page) -> None:
    """An answer streams; a picture forms; its file replays to the last pixel; a list is judged."""
    page.locator("#message textarea").fill("Tell me a story about a cat.")
    with running(page, "#message .stop-button", ANSWER_MS):
        page.locator("#message textarea").press("Enter")
    answer = page.locator("#conversation [data-testid=bot]").first
    expect(settled(page).locator("#conversation small.note")).to_contain_text("tokens")
    assert len(answer.inner_text()) > 20

    open_tab(page, "Sentiment")
    page.locator("#sentiment-text textarea").fill("I loved every minute of it.")
    page.locator("#why").click()
    expect(page.locator("#sentiment-words")).to_contain_text("loved", timeout=ANSWER_MS)
    expect(page.locator("#sentiment-result h3")).to_contain_text("positive")

    open_tab(page, "Images")
    page.locator("#prompt textarea").fill("a red circle on a white background")
    page.locator("#generate").click()
    expect(page.locator("#image-progress")).to_contain_text("step", timeout=ANSWER_MS)
    expect(page.locator("#image-progress")).to_contain_text("seed", timeout=ANSWER_MS)
    expect(page.locator("#image-progress")).to_contain_text("steps in", timeout=ANSWER_MS)
    source = settled(page).locator("#picture img").get_attribute("src")
    assert source is not None
    file = {"name": "circle.png", "mimeType": "image/png", "buffer": page.request.get(source).body()}
    page.locator("#recipe button").first.click()
    page.locator("#recipe-file input[type=file]").set_input_files(file)
    expect(page.locator("#recipe-file")).to_contain_text("circle")
    page.locator("#verify").click()
    expect(page.locator("#image-progress")).to_contain_text("Identical", timeout=ANSWER_MS)
