"""Take docs/screenshots/*.png from the running app: each tab, with something in it, on a desktop and on a phone.

    python docs/screenshots.py [ADDRESS]

ADDRESS is a studio with warm models, by default http://127.0.0.1:7860. Needs requirements-dev.txt and Debian's
chromium.
"""

import io
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

FOLDER = Path(__file__).with_name("screenshots")
CHROMIUM = "/usr/bin/chromium"
WIDTHS = {"desktop": 1280, "phone": 390}
HEIGHT = 900
PATIENCE_MS = 120_000
SEED = "1"

QUESTIONS = ["Hi! My name is Ada.", "What is JAX?", "What's my name?"]
SENTENCE = "The cast is great, and I loved every minute of it."
PROMPT = "a house by the sea at sunset"


def chat(page: Page) -> None:
    page.locator("#chat-settings").get_by_text("Settings").click()
    page.locator("#temperature input[type=number]").fill("0")
    page.locator("#temperature input[type=number]").blur()
    page.locator("#chat-settings").get_by_text("Settings").click()
    for count, question in enumerate(QUESTIONS, 1):
        page.locator("#message textarea").fill(question)
        page.locator("#message textarea").press("Enter")
        expect(page.locator("#conversation small.note")).to_have_count(count, timeout=PATIENCE_MS)
        expect(page.locator("#message .submit-button")).to_be_visible(timeout=PATIENCE_MS)


def sentiment(page: Page) -> None:
    page.locator("#sentiment-text textarea").fill(SENTENCE)
    page.locator("#classify").click()
    expect(page.locator("#sentiment-time")).to_contain_text("ms", timeout=PATIENCE_MS)


def images(page: Page) -> None:
    page.locator("#random-seed input").uncheck()
    page.locator("#seed input").fill(SEED)
    page.locator("#seed input").blur()
    page.locator("#prompt textarea").fill(PROMPT)
    page.locator("#generate").click()
    expect(page.locator("#image-progress")).to_contain_text("steps in", timeout=PATIENCE_MS)
    expect(page.locator("#gallery img")).to_have_count(1)


def save(png: bytes, path: Path) -> None:
    """As a palette image, a third of the size."""
    picture = Image.open(io.BytesIO(png)).convert("RGB").quantize(255, dither=Image.Dither.NONE)
    picture.save(path, optimize=True)
    print(f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}: {path.stat().st_size:,} bytes")


def main(address: str = "http://127.0.0.1:7860") -> None:
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        for device, width in WIDTHS.items():
            for tab, fill in (("Chat", chat), ("Sentiment", sentiment), ("Images", images)):
                page = browser.new_page(viewport={"width": width, "height": HEIGHT})
                page.goto(address)
                page.get_by_role("tab", name=tab).click()
                fill(page)
                page.mouse.move(0, 0)
                page.wait_for_timeout(700)  # smooth scrolling and fading in
                save(page.screenshot(full_page=True), FOLDER / f"{tab.lower()}-{device}.png")
                page.close()
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
