"""Takes the screenshots for README and docs from the running app.

`make screenshots` runs it; it is not a test. Writes docs/screenshots/<tab>-<width>.png, each tab in use on a wide and a
narrow window, and docs/screenshots/studio.webp, a short recording: an answer that streams, then a picture that forms.
"""

import base64
import io
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.studio.conftest import CHROMIUM, FLAGS, ROOT, START_S, Studio, end, load, open_tab, start, watch
from tests.studio.test_accessibility import at_rest

FOLDER = ROOT / "docs" / "screenshots"
WIDTHS = {1280: 900, 390: 844}
ANSWER_MS = 60_000

QUESTIONS = ["Hi! My name is Ada.", "What is JAX?", "What's my name?"]
SENTENCE = "A great cast, and the ending made me smile."
PROMPT = "a red boat on a lake"
SEED = "1"

RECORDED = {"width": 1120, "height": 800}  # both tabs as far as the button, so that nothing scrolls
SHOWN = (896, 640)
# Optimised programs answer within one redraw, so a reader would not see that answers stream.
SLOWER = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
RECORDED_QUESTIONS = ["What is JAX?", "Tell me a short story about a fox."]
KEY_MS = 40  # between two typed characters
READ_MS = 1_800  # a pause to read, before the recording goes on
LEAST_MS = 60  # frames that follow sooner replace the one before them
MOST_BYTES = 2_000_000
RESIZED = Image.Resampling.LANCZOS


def fill(page: Page, selector: str, value: str) -> None:
    page.locator(selector).fill(value)
    page.locator(selector).blur()


def greedy(page: Page) -> None:
    """Make answers the same in every run."""
    open_tab(page, "Chat")
    expect(page.locator("#message textarea")).to_be_visible(timeout=ANSWER_MS)  # the page is drawn
    with settings_open(page, "chat-settings"):
        fill(page, "#temperature input[type=number]", "0")


@contextmanager
def settings_open(page: Page, panel: str) -> Iterator[None]:
    """In narrow windows the settings are a drawer."""
    is_drawer = not page.locator(f"#{panel}").is_visible()
    if is_drawer:
        page.locator(f"[data-flip={panel}][aria-controls]").click()
    yield
    if is_drawer:
        page.keyboard.press("Escape")


def answered(page: Page, number: int) -> None:
    """Wait until `number` answers are on the page and the last one is complete."""
    notes = page.locator("#conversation small.note")
    expect(notes).to_have_count(number, timeout=ANSWER_MS)
    expect(notes.last).to_contain_text("tokens", timeout=ANSWER_MS)
    expect(page.locator("#message .submit-button")).to_be_visible(timeout=ANSWER_MS)


def chosen_seed(page: Page) -> None:
    open_tab(page, "Images")
    expect(page.locator("#prompt textarea")).to_be_visible(timeout=ANSWER_MS)
    with settings_open(page, "image-settings"):
        page.locator("#random-seed input").uncheck()
        fill(page, "#seed input", SEED)


def drawn(page: Page) -> None:
    expect(page.locator("#image-progress")).to_contain_text("steps in", timeout=ANSWER_MS)


def chat(page: Page) -> None:
    greedy(page)
    for number, text in enumerate(QUESTIONS, 1):
        page.locator("#message textarea").fill(text)
        page.locator("#message textarea").press("Enter")
        answered(page, number)


def sentiment(page: Page) -> None:
    open_tab(page, "Sentiment")
    page.locator("#sentiment-text textarea").fill(SENTENCE)
    page.locator("#why").click()
    expect(page.locator("#sentiment-words .words")).to_be_visible(timeout=ANSWER_MS)


def images(page: Page) -> None:
    chosen_seed(page)
    page.locator("#prompt textarea").fill(PROMPT)
    page.locator("#generate").click()
    drawn(page)


def engine(page: Page) -> None:
    open_tab(page, "Engine")
    expect(page.locator("#engine-ladder .rung").first).to_be_visible(timeout=ANSWER_MS)


class Recording:
    """Frames of a page, as Chromium paints them, with the time at which each was painted.

    Playwright delivers events only while one of its calls runs, so wait with `page.wait_for_timeout`.
    """

    def __init__(self, page: Page):
        self._frames: list[tuple[float, bytes]] = []  # seconds, PNG
        self._session = page.context.new_cdp_session(page)
        self._session.on("Page.screencastFrame", self._add)

    def begin(self) -> None:
        self._session.send("Page.startScreencast", {"format": "png", "everyNthFrame": 1})

    def finish(self) -> None:
        self._session.send("Page.stopScreencast")

    def _add(self, frame: dict[str, Any]) -> None:
        self._frames.append((frame["metadata"]["timestamp"], base64.b64decode(frame["data"])))
        self._session.send("Page.screencastFrameAck", {"sessionId": frame["sessionId"]})

    def save(self, path: Path) -> None:
        """Write an animated WebP file that loops, each frame as long as the page showed it."""
        frames = [self._frames[0]]
        for time, png in self._frames[1:]:
            if (time - frames[-1][0]) * 1e3 < LEAST_MS:
                frames[-1] = (frames[-1][0], png)
            elif png != frames[-1][1]:
                frames.append((time, png))
        ends = [time for time, _ in frames[1:]] + [frames[-1][0] + READ_MS / 1e3]
        lasts = [round((after - time) * 1e3) for (time, _), after in zip(frames, ends, strict=True)]
        first, *others = [Image.open(io.BytesIO(png)).convert("RGB").resize(SHOWN, RESIZED) for _, png in frames]
        first.save(path, save_all=True, append_images=others, duration=lasts, loop=0, quality=80, method=6)
        size = path.stat().st_size
        print(f"{path.relative_to(ROOT)}: {len(frames)} frames, {sum(lasts) / 1e3:.1f} s, {size:,} bytes")
        assert size < MOST_BYTES, "too large for the README"


def record(browser: Browser, studio: Studio, path: Path) -> None:
    page = load(watch(browser.new_page(viewport=RECORDED)), studio.url)
    chosen_seed(page)
    greedy(page)
    recording = Recording(page)
    recording.begin()
    for number, text in enumerate(RECORDED_QUESTIONS, 1):
        page.locator("#message textarea").press_sequentially(text, delay=KEY_MS)
        page.locator("#message textarea").press("Enter")
        answered(page, number)
        page.wait_for_timeout(READ_MS)
    open_tab(page, "Images")
    page.locator("#prompt textarea").press_sequentially(PROMPT, delay=KEY_MS)
    page.locator("#generate").click()
    drawn(page)
    page.wait_for_timeout(READ_MS)
    recording.finish()
    recording.save(path)
    page.close()


def save(png: bytes, path: Path) -> None:
    """Save a screenshot with a palette, at a third of the size."""
    picture = Image.open(io.BytesIO(png)).convert("RGB").quantize(255, dither=Image.Dither.NONE)
    picture.save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


@contextmanager
def warm(folder: Path, **environment: str) -> Iterator[Studio]:
    studio = start(folder / "log", **environment)
    try:
        studio.wait_until(
            lambda health: all(m["programs"] == m["programs_expected"] for m in health["models"]), START_S, "warm"
        )
        yield studio
    finally:
        end(studio)


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        with warm(Path(name), **SLOWER) as studio:
            record(browser, studio, FOLDER / "studio.webp")
        with warm(Path(name)) as studio:
            for width, height in WIDTHS.items():
                page = load(watch(browser.new_page(viewport={"width": width, "height": height})), studio.url)
                for use in (chat, sentiment, images, engine):
                    use(page)
                    page.mouse.move(0, 0)
                    at_rest(page)
                    save(page.screenshot(full_page=True), FOLDER / f"{use.__name__}-{width}.png")
        browser.close()


if __name__ == "__main__":
    main()
