"""A picture on the chat page: attached, asked about, kept, and shown again to the model with the next question."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.chat.vision.checkpoints import checkpoint, drawn, png

from .conftest import START_S, Studio, end, reload, start
from .test_chat_page import kept
from .test_chat_tab import Visit, answered, box, notes, questions


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    """A server whose chat model sees; its other two models do not exist."""
    folder = tmp_path_factory.mktemp("seeing")
    checkpoint("smolvlm", folder / "seeing")
    studio = start(
        folder / "log",
        HFJAX_CHAT_MODEL=str(folder / "seeing"),
        HFJAX_SENTIMENT_MODEL=str(folder / "none"),
        HFJAX_IMAGE_MODEL=str(folder / "none"),
        HFJAX_SLOTS="2",
        HFJAX_CONTEXT="512",
        JAX_DISABLE_MOST_OPTIMIZATIONS="1",
    )
    studio.wait_until(lambda health: health["backends"]["chat"]["state"] == "ready", START_S, "ready")
    yield studio
    end(studio)


def attach(page: Page, *seeds: int) -> None:
    files = [{"name": f"{seed}.png", "mimeType": "image/png", "buffer": png(drawn(seed))} for seed in seeds]
    page.locator("#picture-files").set_input_files(files)
    expect(page.locator("#attached img")).to_have_count(len(seeds))


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
