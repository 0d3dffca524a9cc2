"""Takes the README's pictures from the running app: each tab in use, on a wide and a narrow window.

`make screenshots` runs it; it is no test. Writes docs/screenshots/<tab>-<width>.png.
"""

import io
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

from tests.studio.conftest import CHROMIUM, FLAGS, ROOT, START_S, end, start

FOLDER = ROOT / "docs" / "screenshots"
WIDTHS = {1280: 900, 390: 844}
ANSWER_MS = 60_000

QUESTIONS = ["Hi! My name is Ada.", "What is JAX?", "What's my name?"]
SENTENCE = "A great cast, and the ending made me smile."
PROMPT = "a red boat on a lake"
SEED = "1"


def fill(page: Page, selector: str, value: str) -> None:
    page.locator(selector).fill(value)
    page.locator(selector).blur()


def chat(page: Page) -> None:
    page.get_by_role("tab", name="Chat").click()
    page.locator("#chat-settings").get_by_text("Settings").click()
    fill(page, "#temperature input[type=number]", "0")
    page.locator("#chat-settings").get_by_text("Settings").click()
    for number, text in enumerate(QUESTIONS, 1):
        page.locator("#message textarea").fill(text)
        page.locator("#message textarea").press("Enter")
        notes = page.locator("#conversation small.note")
        expect(notes).to_have_count(number, timeout=ANSWER_MS)
        expect(notes.last).to_contain_text("tokens", timeout=ANSWER_MS)
        expect(page.locator("#message .submit-button")).to_be_visible(timeout=ANSWER_MS)


def sentiment(page: Page) -> None:
    page.get_by_role("tab", name="Sentiment").click()
    page.locator("#sentiment-text textarea").fill(SENTENCE)
    page.locator("#why").click()
    expect(page.locator("#sentiment-reason")).to_contain_text("towards", timeout=ANSWER_MS)


def images(page: Page) -> None:
    page.get_by_role("tab", name="Images").click()
    page.locator("#random-seed input").uncheck()
    fill(page, "#seed input", SEED)
    page.locator("#prompt textarea").fill(PROMPT)
    page.locator("#generate").click()
    expect(page.locator("#image-progress")).to_contain_text("steps in", timeout=ANSWER_MS)


def save(png: bytes, path: Path) -> None:
    """With a palette, at a third of the size."""
    picture = Image.open(io.BytesIO(png)).convert("RGB").quantize(255, dither=Image.Dither.NONE)
    picture.save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


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
                    page.mouse.move(0, 0)
                    page.wait_for_timeout(800)  # transitions of the page
                    save(page.screenshot(full_page=True), FOLDER / f"{use.__name__}-{width}.png")
            browser.close()
        finally:
            end(studio)


if __name__ == "__main__":
    main()
