"""What the chat does in the browser: drafts, versions, conversations, presets, files, and what it tells whom."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from .conftest import Studio, reload, settled
from .test_accessibility import still
from .test_chat_tab import (
    Visit,
    answered,
    answers,
    ask,
    box,
    clear,
    cleared,
    notes,
    option,
    option_field,
    questions,
    set_option,
)


@pytest.fixture
def page(studio: Studio, revisit: Visit) -> Page:
    return cleared(revisit(studio))


def kept(page: Page, *values: str) -> None:
    """Wait until the browser keeps a conversation with these values: it does a moment after the last change."""
    page.wait_for_function(
        "values => Object.values(localStorage).some(kept => values.every(value => kept.includes(value)))",
        arg=[*values],
    )


def chosen(page: Page, conversation: str, action: str) -> None:
    """Choose from the menu of a conversation in the list."""
    page.get_by_role("button", name=f"Rename, export or delete: {conversation}").click()
    page.locator("#chat-menu").get_by_role("button", name=action).click()


def test_a_model_without_eyes_takes_no_pictures(page: Page) -> None:
    expect(page.locator("#picture-files")).to_be_attached()
    expect(page.get_by_role("button", name="Add a picture")).to_be_hidden()


def test_an_answer_is_copied_alone(page: Page) -> None:
    """The figures under it came along."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answer = ask(page, "What is JAX?")
    page.get_by_role("button", name="Copy answer").click()
    page.wait_for_function("text => navigator.clipboard.readText().then(copied => copied == text)", arg=answer)


def test_a_draft_survives_retry_edit_undo_and_reload(page: Page) -> None:
    ask(page, "Hello!")
    box(page).fill("half a")
    with answered(page):
        page.get_by_role("button", name="Retry").click()
    expect(box(page)).to_have_value("half a")
    page.get_by_role("button", name="Edit question").click()
    page.locator("#conversation textarea").fill("Good morning!")
    with answered(page):
        page.get_by_role("button", name="Submit").click()
    expect(box(page)).to_have_value("half a")
    kept(page, "half a")
    reload(page)
    expect(questions(page)).to_have_text("Good morning!")
    expect(box(page)).to_have_value("half a")
    page.get_by_role("button", name="Undo").click()
    expect(box(page)).to_have_value("Good morning!\n\nhalf a")
    box(page).fill("")


def test_settings_survive_a_reload_and_an_emptied_number_its_emptiness(page: Page) -> None:
    """An emptied temperature became 0."""
    ask(page, "Hello!")
    set_option(page, "system-prompt", "You are a pirate.")
    set_option(page, "temperature", "0.3")
    kept(page, "You are a pirate.", '"temperature":0.3')
    reload(page)
    expect(questions(page)).to_have_count(1)
    expect(option_field(page, "system-prompt")).to_have_value("You are a pirate.")
    temperature = option_field(page, "temperature")
    expect(temperature).to_have_value("0.3")
    temperature.fill("")
    temperature.blur()
    expect(temperature).to_have_value("0.7")
    page.get_by_role("button", name="Reset", exact=True).click()
    expect(option_field(page, "system-prompt")).to_have_value("")


def test_a_new_question_is_scrolled_to(page: Page) -> None:
    log = page.get_by_role("log")
    with option(page, "max-tokens", "8"):
        for _ in range(2):
            ask(page, "I like the sea and the mountains. " * 30)
        # the page may scroll to the end of the last answer once more
        page.wait_for_function(
            """() => {
                const log = document.querySelector("[role=log]");
                const stays = log.scrollTop === 0;
                log.scrollTo(0, 0);
                return stays;
            }"""
        )
        settled(page)
        ask(page, "Hello!")
    log = "document.querySelector('[role=log]')"
    page.wait_for_function(f"{log}.scrollTop + {log}.clientHeight > {log}.scrollHeight - 60")


def test_answers_are_spoken_once(page: Page) -> None:
    """Gradio's log is a live region, and read aloud from the start at every redraw."""
    answer = ask(page, "What is JAX?")
    expect(page.get_by_role("log")).to_have_attribute("aria-live", "off")
    spoken = page.locator("#announcer[role=status]")
    expect(spoken).to_have_text(re.compile(r"\S"))
    page.wait_for_function(
        "answer => answer.includes(document.querySelector('#announcer').innerText.trim())", arg=answer
    )


def test_the_box_has_the_focus_and_a_name(page: Page) -> None:
    reload(page)
    field = page.get_by_role("textbox", name="Message", exact=True)
    expect(field).to_be_focused()
    frame = still(page, "#box", "borderColor")
    page.get_by_role("button", name="Send", exact=True).focus()
    page.keyboard.press("Shift+Tab")
    page.get_by_role("tab", name="Chat").focus()
    assert still(page, "#box", "borderColor") != frame, "the focus is seen"


def test_the_first_screen_says_what_this_is(page: Page) -> None:
    """Which small model answers, how it was made, how to run a real one, and a way to see how it runs."""
    hello = page.locator("#hello")
    expect(hello).to_contain_text("4\N{NO-BREAK SPACE}million parameters")
    hello.get_by_role("button", name="Its model card").click()
    expect(hello.get_by_text("How it was made")).to_be_visible()
    page.keyboard.press("Escape")
    hello.get_by_role("button", name="Run a real model, one line").click()
    expect(hello.get_by_text("HFJAX_CHAT_MODEL=")).to_be_visible()
    page.keyboard.press("Escape")
    hello.get_by_role("link", name="See how it runs").click()
    expect(page.get_by_role("tab", name="Engine")).to_have_attribute("aria-selected", "true")
    expect(page).to_have_url(re.compile("#engine$"))
    page.get_by_role("tab", name="Chat").click()


def test_answers_have_versions(page: Page) -> None:
    """Retry keeps the answer before, and each has its figures."""
    with option(page, "temperature", "1.5"):
        first = ask(page, "Tell me a story about a cat.")
        figures = notes(page).inner_text()
        with answered(page):
            page.get_by_role("button", name="Retry").click()
    expect(page.locator(".versions")).to_have_text("2 / 2")
    page.get_by_role("button", name="Version before").click()
    expect(page.locator(".versions")).to_have_text("1 / 2")
    expect(answers(page)).to_have_text(
        re.compile(r"\s*".join(map(re.escape, first.split())))
    )  # lines are shown as <br>
    expect(notes(page)).to_have_text(figures)
    reload(page)
    expect(page.locator(".versions")).to_have_text("1 / 2")
    page.get_by_role("button", name="Next version").click()
    expect(page.locator(".versions")).to_have_text("2 / 2")


def test_an_answer_can_be_edited(page: Page) -> None:
    """The model goes on from the edited text."""
    with option(page, "temperature", "0"):
        ask(page, "My name is Ada.")
        page.get_by_role("button", name="Edit answer").click()
        page.locator("#conversation textarea").fill("Hello <b>Grace</b>!")
        page.get_by_role("button", name="Save", exact=True).click()
        expect(answers(page)).to_have_text("Hello <b>Grace</b>!")
        expect(notes(page)).to_have_text("edited")
        ask(page, "What is JAX?")
    expect(answers(page).first).to_have_text("Hello <b>Grace</b>!")


def test_an_answer_is_continued(page: Page) -> None:
    """It ended at max tokens, and goes on as if it had not."""
    with option(page, "temperature", "0"):
        whole = ask(page, "What is JAX?")
        clear(page)
        with option(page, "max-tokens", "4"):
            begun = ask(page, "What is JAX?")
        with answered(page):
            page.get_by_role("button", name="Continue answer").click()
    assert whole.startswith(begun)
    assert len(begun) < len(whole)
    expect(answers(page)).to_have_text(whole)


def test_conversations_are_listed_found_renamed_and_deleted(page: Page) -> None:
    for text in ("What is JAX?", "Tell me a poem."):
        ask(page, text)
        clear(page)
    for text in ("What is JAX?", "Tell me a poem."):
        expect(page.locator("#chat-list a", has_text=text).first).to_be_visible()
    page.locator("#chat-list a", has_text="What is JAX?").first.click()
    expect(questions(page)).to_have_text("What is JAX?")
    page.get_by_role("searchbox").fill("POEM")
    expect(page.locator("#chat-list a")).to_have_text(["Tell me a poem."])
    chosen(page, "Tell me a poem.", "Rename")
    page.get_by_role("textbox", name="Name of the conversation").fill("Two lines <b>")
    page.keyboard.press("Enter")
    page.get_by_role("searchbox").fill("two lines")
    expect(page.locator("#chat-list a")).to_have_text(["Two lines <b>"])
    chosen(page, "Two lines <b>", "Delete")
    page.get_by_role("button", name="Really delete?").click()
    expect(page.locator("#chat-list a")).to_have_count(0)
    page.get_by_role("searchbox").fill("")
    reload(page)
    expect(questions(page)).to_have_text("What is JAX?")
    expect(page.locator("#chat-list a", has_text="Two lines <b>")).to_have_count(0)


def test_conversations_are_exported_and_imported(page: Page, tmp_path: Path) -> None:
    with option(page, "temperature", "0"):
        answer = ask(page, "Is <b> a tag?")
    with page.expect_download() as download:
        chosen(page, "Is <b> a tag?", "Export as JSON")
    path = tmp_path / "conversation.json"
    download.value.save_as(path)
    [kept] = json.loads(path.read_text())["conversations"]
    question, reply = kept["messages"]
    assert question == {"role": "user", "content": "Is <b> a tag?"}
    assert reply["content"].split() == answer.split()
    with page.expect_download() as download:
        chosen(page, "Is <b> a tag?", "Export as Markdown")
    exported = Path(download.value.path()).read_text()
    assert exported == f"# Is <b> a tag?\n\n## You\n\nIs <b> a tag?\n\n## Answer\n\n{reply['content']}\n\n"
    kept["title"] = "Imported"
    path.write_text(json.dumps({"conversations": [kept, {"messages": "none"}]}))
    page.locator("#import-chats").set_input_files(path)
    expect(page.locator("#chat-hint")).to_have_text("1 conversation imported.")
    page.locator("#chat-list a", has_text="Imported").click()
    expect(questions(page)).to_contain_text("a tag?")
    expect(answers(page)).to_have_text(answer)
    path.write_text("{")
    page.locator("#import-chats").set_input_files(path)
    expect(page.locator("#chat-hint")).to_contain_text("conversation.json can't be read")


def test_presets_are_chosen_and_saved(page: Page) -> None:
    presets = page.locator("#presets")
    presets.get_by_text("Precise").click()
    expect(option_field(page, "temperature")).to_have_value("0.2")
    set_option(page, "temperature", "0.45")
    page.get_by_role("button", name="Save as preset").click()
    page.get_by_role("textbox", name="Name of the preset").fill("Mine")
    page.keyboard.press("Enter")
    presets.get_by_text("Model's own").click()
    expect(option_field(page, "temperature")).to_have_value("0.7")
    reload(page)
    presets.get_by_text("Mine").click()
    expect(option_field(page, "temperature")).to_have_value("0.45")
    page.get_by_role("button", name="Delete this preset").click()
    expect(presets.get_by_text("Mine")).to_have_count(0)
    presets.get_by_text("Model's own").click()


def test_an_answer_ends_at_a_stop_string(page: Page) -> None:
    with option(page, "temperature", "0"), option(page, "stop-strings", " is\nnever said"):
        assert ask(page, "What is JAX?") == "JAX"


def test_a_text_file_is_pasted_and_counted(page: Page, tmp_path: Path) -> None:
    context = page.locator("#context")
    expect(context).to_contain_text("0 of 512")
    path = tmp_path / "notes.md"
    path.write_text("# Sea\n\nI like the sea. " * 20)
    page.locator("#paste-file").set_input_files(path)
    expect(box(page)).to_have_value(re.compile(r"^notes\.md:\n\n# Sea"))
    expect(context).to_contain_text(re.compile(r"about \d{2,3} of 512"))
    path.write_bytes(b"PK\x03\x04\0\0")
    page.locator("#paste-file").set_input_files(path)
    expect(page.locator("#chat-hint")).to_have_text("notes.md is not a text.")
    box(page).fill("")
