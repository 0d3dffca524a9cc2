"""A picture on the chat page: attached, asked about, kept, and shown again to the model with the next question."""

import base64
import math
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.chat.vision.checkpoints import PICTURE_TOKENS, checkpoint, drawn, png

from .conftest import LIMIT_S, START_S, Studio, end, reload, start
from .test_chat_page import kept
from .test_chat_tab import Visit, answered, box, notes, questions


def started(folder: Path, **environment: str) -> Studio:
    """A server whose chat model sees and can be asked; its other two models do not exist."""
    checkpoint("smolvlm", folder / "seeing")
    studio = start(
        folder / "log",
        HFJAX_CHAT_MODEL=str(folder / "seeing"),
        HFJAX_SENTIMENT_MODEL=str(folder / "none"),
        HFJAX_IMAGE_MODEL=str(folder / "none"),
        HFJAX_SLOTS="2",
        HFJAX_CONTEXT="512",
        **environment,
    )
    studio.wait_until(lambda health: health["backends"]["chat"]["state"] == "ready", START_S, "ready")
    return studio


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    studio = started(tmp_path_factory.mktemp("seeing"), JAX_DISABLE_MOST_OPTIMIZATIONS="1")
    yield studio
    end(studio)


def attach(page: Page, *seeds: int) -> None:
    files = [{"name": f"{seed}.png", "mimeType": "image/png", "buffer": png(drawn(seed))} for seed in seeds]
    page.locator("#picture-files").set_input_files(files)
    expect(page.locator("#attached img")).to_have_count(len(seeds))


def counts_what_is_typed(page: Page, beside: int) -> None:
    """By the characters of a token in the conversation, whose pictures' tokens have none."""
    used, characters = page.evaluate(
        """() => [studio.chat.value.findLast(entry => entry.metadata?.id > 0).metadata.id,
            studio.chat.value.reduce((sum, entry) => sum + (entry.content?.[0]?.text?.length ?? 0), 0)]"""
    )
    read = used - beside
    each = characters / read if read > 20 and characters > 40 else 3.6
    box(page).fill("x" * 200)
    expect(page.locator("#context")).to_contain_text(f"about {used + math.ceil(200 / each)} of 512")
    box(page).fill("")


@pytest.mark.slow
def test_a_question_about_a_picture(seeing: Studio, visit: Visit) -> None:
    page = visit(seeing)
    expect(page.get_by_role("button", name="Add a picture")).to_be_visible()
    expect(page.locator("#chat-notices")).to_contain_text("It sees pictures")
    attach(page, 1, 2)
    page.get_by_role("button", name="Remove picture 2").click()
    with answered(page):
        box(page).fill("What is it?")
        box(page).press("Enter")
    expect(page.locator("#attached img")).to_have_count(0)
    shown = page.locator("#conversation .user-row img")
    expect(shown).to_have_count(1)
    shown.evaluate("image => image.decode()")
    assert shown.evaluate("image => image.naturalWidth") == drawn(1).width
    counts_what_is_typed(page, beside=PICTURE_TOKENS)
    with answered(page):
        box(page).fill("And now?")
        box(page).press("Enter")
    expect(notes(page)).to_have_count(2)
    with answered(page):
        page.get_by_role("button", name="Edit question").first.click()
        page.locator("#conversation form.edit button[type=submit]").click()
    expect(shown).to_have_count(1)
    kept(page, "What is it?")
    reload(page)
    expect(shown).to_have_count(1)
    expect(page.locator("#conversation .user-row")).to_have_count(1)
    expect(questions(page).first).to_have_text("What is it?")
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("#attached img")).to_have_count(1)
    expect(box(page)).to_have_value("What is it?")


@pytest.mark.slow
def test_each_conversation_has_its_own_attached_pictures(seeing: Studio, visit: Visit) -> None:
    page = visit(seeing)
    with answered(page):
        box(page).fill("Hello!")
        box(page).press("Enter")
    attach(page, 1)
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("#attached img")).to_have_count(0)
    page.locator("#chat-list [data-open]").first.click()
    expect(page.locator("#attached img")).to_have_count(1)


@pytest.mark.slow
def test_attached_pictures_open_and_change_places(seeing: Studio, visit: Visit) -> None:
    """With their tokens, which the context's counter has too; by mouse and by keys."""
    page = visit(seeing)
    attach(page, 1, 2)
    places = page.locator("#attached [data-picture]")
    expect(places.locator("small")).to_have_text(["16", "16"])
    expect(page.locator("#context")).to_contain_text("32 of 512")
    first, second = page.locator("#attached img").evaluate_all("images => images.map(image => image.src)")
    page.get_by_role("button", name="Open picture 1").click()
    expect(page.locator("dialog img")).to_have_attribute("src", first)
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    places.first.drag_to(places.nth(1))
    expect(page.locator("#attached img").first).to_have_attribute("src", second)
    page.get_by_role("button", name="Open picture 2").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#attached img").first).to_have_attribute("src", first)
    page.get_by_role("button", name="Remove picture 1").click()
    expect(page.locator("#context")).to_contain_text("16 of 512")


def compiles(process: str) -> bool:
    try:
        return b"compile" in Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:  # it has ended
        return False


def compiler_of(studio: Studio) -> int:
    """The process that compiles the programs that a server has later."""
    found: list[str] = []

    def runs(_: object) -> bool:
        tasks = Path(f"/proc/{studio.process.pid}/task").glob("*/children")
        found.extend(child for task in tasks for child in task.read_text().split() if compiles(child))
        return bool(found)

    studio.wait_until(runs, LIMIT_S, "compiles")
    return int(found[0])


@pytest.mark.slow
def test_the_page_says_by_itself_when_pictures_are_ready(visit: Visit, tmp_path: Path) -> None:
    """Text is served first. The process that compiles what pictures need is held until then."""
    studio = started(tmp_path, HFJAX_CACHE_DIR=str(tmp_path / "cache"))
    try:
        compiler = compiler_of(studio)
        os.kill(compiler, signal.SIGSTOP)
        page = visit(studio)
        notices = page.locator("#chat-notices")
        expect(notices).to_contain_text("in a few minutes, when their programs are compiled")
        with answered(page):
            box(page).fill("Hello!")
            box(page).press("Enter")
        attach(page, 1)
        box(page).fill("What is it?")
        box(page).press("Enter")
        expect(page.locator(".toast-body")).to_contain_text("pictures are not ready yet")
        expect(page.locator("#attached img")).to_have_count(1)
        os.kill(compiler, signal.SIGCONT)
        expect(notices).to_have_text("It sees pictures: add them to your messages.", timeout=START_S * 1000)
        with answered(page):
            box(page).press("Enter")
        expect(page.locator("#conversation .user-row img")).to_have_count(1)
        page.close()
    finally:
        end(studio)


BRINGS = """([event, file]) => {
    const data = new DataTransfer();
    const bytes = Uint8Array.from(atob(file), (each) => each.charCodeAt(0));
    data.items.add(new File([bytes], "picture.png", {type: "image/png"}));
    const options = {bubbles: true, cancelable: true, clipboardData: data, dataTransfer: data};
    const made = event === "paste" ? new ClipboardEvent(event, options) : new DragEvent(event, options);
    document.querySelector("#message textarea").dispatchEvent(made);
}"""


@pytest.mark.slow
def test_pictures_are_pasted_and_dropped_and_too_many_are_refused(seeing: Studio, visit: Visit) -> None:
    page = visit(seeing)
    for at in range(9):
        page.evaluate(BRINGS, ["paste" if at % 2 else "drop", base64.b64encode(png(drawn(at))).decode()])
        expect(page.locator("#attached img")).to_have_count(min(at + 1, 8))
    expect(page.locator("#chat-hint")).to_contain_text("A conversation has at most 8 pictures.")
    expect(page.locator("#context")).to_contain_text("128 of 512")
    box(page).fill("x" * 300)
    box(page).press("Enter")
    expect(page.locator(".toast-body")).to_contain_text("pictures: 8 of 128 tokens in one message, and")
    expect(page.locator("#attached img")).to_have_count(8)
