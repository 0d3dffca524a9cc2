"""Takes the README's pictures from the running app: each tab in use, on a wide and a narrow window.

`make screenshots` runs it; it is no test. Writes docs/screenshots/<tab>-<width>.png.
"""

import tempfile
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

from tests.studio.conftest import CHROMIUM, FLAGS, ROOT, START_S, end, start

FOLDER = ROOT / "docs" / "screenshots"
WIDTHS = {1280: 900, 390: 844}
ANSWER_MS = 60_000


def chat(page: Page) -> None:
    page.get_by_role("tab", name="Chat").click()
    for number, text in enumerate(["My name is Ada.", "What is JAX?", "What's my name?"], 1):
        page.locator("#message textarea").fill(text)
        page.locator("#message textarea").press("Enter")
        notes = page.locator("#conversation small.note")
        expect(notes).to_have_count(number, timeout=ANSWER_MS)
        expect(notes.last).to_contain_text("tokens", timeout=ANSWER_MS)
        expect(page.locator("#message .submit-button")).to_be_visible(timeout=ANSWER_MS)


def sentiment(page: Page) -> None:
    page.get_by_role("tab", name="Sentiment").click()
    page.locator("#sentiment-text textarea").fill("A great cast, and the ending made me smile.")
    page.locator("#classify").click()
    expect(page.locator("#sentiment-label h2")).to_be_visible(timeout=ANSWER_MS)


def images(page: Page) -> None:
    page.get_by_role("tab", name="Images").click()
    page.locator("#prompt textarea").fill("a house by the sea at sunset")
    page.locator("#generate").click()
    expect(page.locator("#image-progress")).to_contain_text("steps in", timeout=ANSWER_MS)


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        studio = start(Path(folder) / "log")
        try:
            studio.wait_until(lambda health: health["status"] == "ready", START_S, "warm")
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            for width, height in WIDTHS.items():
                page = browser.new_page(viewport={"width": width, "height": height})
                page.goto(studio.url)
                for use in (chat, sentiment, images):
                    use(page)
                    page.wait_for_timeout(800)  # transitions of the page
                    path = FOLDER / f"{use.__name__}-{width}.png"
                    page.screenshot(path=path)
                    print(path.relative_to(ROOT))
            browser.close()
        finally:
            end(studio)


if __name__ == "__main__":
    main()
