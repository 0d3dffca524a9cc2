"""The chat tab in a browser, with the embedded model."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from hfjax_app.studio.transcript import PageMessage

from .conftest import LIMIT_MS, Studio, load, reload, running, settled, watch

Visit = Callable[..., Page]  # what `visit` and `revisit` are
ANSWER_MS = 2 * LIMIT_MS


def answers(page: Page) -> Locator:
    """The assistant's messages: the texts, without the notes under them."""
    return page.locator("#conversation [data-testid=bot]:not(:has(small.note))")


def notes(page: Page) -> Locator:
    return page.locator("#conversation small.note")


def questions(page: Page) -> Locator:
    return page.locator("#conversation [data-testid=user]")


def box(page: Page) -> Locator:
    return page.locator("#message textarea")


def answered(page: Page) -> AbstractContextManager[None]:
    """Wait until the question that the block asks is answered completely."""
    return running(page, "#message .stop-button", ANSWER_MS)


def ask(page: Page, text: str) -> str:
    """Type a message, wait for the whole answer and return it."""
    box(page).fill(text)
    with answered(page):
        box(page).press("Enter")
    return answers(settled(page)).last.inner_text()


def clear(page: Page) -> None:
    page.get_by_role("button", name="New chat").click()
    expect(questions(page)).to_have_count(0)
    expect(page.locator("#message .submit-button")).to_be_visible()
    settled(page)


def option_field(page: Page, elem_id: str) -> Locator:
    if elem_id == "chat-seed" and not page.locator("#chat-seed").is_visible():
        page.get_by_role("button", name="Finer sampling").click()
        settled(page)
    return page.locator(f"#{elem_id} input[type=number], #{elem_id} textarea, #{elem_id} input[type=text]").first


def example(page: Page) -> Locator:
    return page.locator("#hello").get_by_role("button", name="What is JAX?")


def set_option(page: Page, elem_id: str, value: str) -> None:
    field = option_field(page, elem_id)
    field.fill(value)
    field.blur()
    settled(page)  # the page's scripts have the value too
    expect(field).to_have_value(value)


@contextmanager
def option(page: Page, elem_id: str, value: str) -> Iterator[None]:
    """Change a setting while the block runs."""
    field = option_field(page, elem_id)
    before = field.input_value()
    set_option(page, elem_id, value)
    yield
    set_option(page, elem_id, before)


def cleared(page: Page) -> Page:
    """The page with an empty conversation."""
    if questions(page).count():
        clear(page)
    return page


@pytest.fixture
def page(studio: Studio, revisit: Visit) -> Page:
    return cleared(revisit(studio))


def test_says_what_jax_is(page: Page) -> None:
    with option(page, "temperature", "0"):
        answer = ask(page, "What is JAX?")
    assert re.search(r"python|numpy|compil|XLA|library|google|accelerat", answer, re.IGNORECASE), answer


def test_remembers_a_name(page: Page) -> None:
    """Also after a reload of the page."""
    with option(page, "temperature", "0"):
        ask(page, "My name is Ada.")
    before = notes(page).inner_text()
    reload(page)
    expect(notes(page)).to_have_text(before)
    with option(page, "temperature", "0"):
        assert "Ada" in ask(page, "What's my name?")


def test_retry_edit_undo_clear(page: Page) -> None:
    ask(page, "Hello!")
    ask(page, "What is 2 plus 3?")
    with answered(page):
        page.get_by_role("button", name="Retry").last.click()
    expect(questions(page)).to_have_count(2)
    expect(notes(page)).to_have_count(2)

    page.get_by_role("button", name="Edit").first.click()
    page.locator("#conversation textarea").fill("Good morning!")
    with answered(page):
        page.get_by_role("button", name="Submit").click()
    expect(questions(page)).to_have_text("Good morning!")
    expect(notes(page)).to_have_count(1)

    page.get_by_role("button", name="Undo").click()
    expect(questions(page)).to_have_count(0)
    expect(box(page)).to_have_value("Good morning!")

    ask(page, "Hello!")
    clear(page)
    reload(page)
    expect(example(page)).to_be_visible()
    expect(questions(page)).to_have_count(0)


def test_an_example_is_asked_at_once(page: Page) -> None:
    with answered(page):
        example(page).click()
    expect(notes(page)).to_have_count(1)
    expect(questions(page)).to_have_text("What is JAX?")


def test_max_tokens_and_seed(page: Page) -> None:
    """The controls reach the engine: a limit of five tokens gives five, and a seed repeats its answer."""
    with option(page, "temperature", "1.5"), option(page, "chat-seed", "7"):
        story = ask(page, "Tell me a story about a cat.")
        clear(page)
        assert ask(page, "Tell me a story about a cat.") == story
        with option(page, "max-tokens", "5"):
            ask(page, "Tell me a story about a cat.")
    expect(notes(page).last).to_contain_text(re.compile(r"· 5 tokens · .*ended at max tokens"))


def test_a_full_context_drops_the_oldest_messages_and_says_so(page: Page) -> None:
    with option(page, "max-tokens", "8"):
        for _ in range(4):
            ask(page, "I like the sea and the mountains. " * 24)
    expect(notes(page).last).to_contain_text(re.compile(r"oldest \d+ messages dropped"))


@pytest.mark.parametrize(
    ("typed", "says"), [("   ", "message is empty"), ("a" * 20_001, "message of 20,001 characters: at most 20,000")]
)
def test_bad_messages_are_rejected_and_stay_in_the_box(page: Page, typed: str, says: str) -> None:
    ask(page, "Hello!")
    box(page).fill(typed)
    box(page).press("Enter")
    expect(page.get_by_text(says)).to_be_visible()
    expect(box(page)).to_have_value(typed)
    expect(answers(page)).to_have_count(1)
    expect(answers(page)).to_be_visible()


def test_a_bad_seed_is_rejected(page: Page) -> None:
    with option(page, "chat-seed", "minus one"):
        box(page).fill("Hello!")
        box(page).press("Enter")
        expect(page.get_by_text("seed = 'minus one': must be a whole number")).to_be_visible()
    expect(box(page)).to_have_value("Hello!")


def test_a_message_is_shown_as_typed(page: Page) -> None:
    """Special tokens and HTML stay text on the page; Gradio's Markdown would drop unknown tags."""
    ask(page, "Is <start_of_turn> a token? What does <div> do? <script>window.hacked = true</script>")
    expect(questions(page)).to_contain_text(re.compile("Is <.?start_of_turn> a token[?] What does <.?div> do[?] <"))
    assert page.evaluate("window.hacked") is None


def test_a_message_is_copied_as_typed(page: Page) -> None:
    """With the button and as a selection. HTML is shown with an invisible character, which must not be copied."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    typed = "What does <div> do?"
    ask(page, typed)
    expect(questions(page)).to_have_text(typed.replace("<", "<\N{WORD JOINER}"))
    page.get_by_role("button", name="Copy").first.click()
    page.wait_for_function(f"navigator.clipboard.readText().then(text => text == '{typed}')")
    page.evaluate("navigator.clipboard.writeText('')")
    questions(page).click(click_count=3)
    page.keyboard.press("Control+C")
    page.wait_for_function(f"navigator.clipboard.readText().then(text => text.trim() == '{typed}')")


def keep(page: Page, entries: list[dict[str, object]]) -> None:
    """Give the page a conversation, for when it is loaded again."""
    page.evaluate(
        """entries => {
            const each = {id: "given", title: "Given", at: 0, entries, settings: null, versions: {}, draft: ""};
            localStorage.setItem("hfjax.chat.given", JSON.stringify(each));
            sessionStorage.setItem("hfjax.chat", "given");
        }""",
        entries,
    )


def test_an_answer_is_drawn_whole(page: Page) -> None:
    """HTML, formulas in all four delimiters, code, and paragraphs from right to left; the reasoning is folded."""
    answer = "\n\n".join(
        [
            r"A <div> where i<b, List<String> and \(a<b\), $x^2$, costs $5 or $10.",
            "$$\\sum_i i$$ \\[ \\frac{1}{2} \\]",
            "\u05e9\u05dc\u05d5\u05dd",
            "```python\nreturn x < 3  # <div> $x$\n```",
        ]
    )
    shown = PageMessage(role="assistant", text=answer, reasoning="A <b>sum</b>.", reasoning_s=2.5, note="a <b>note</b>")
    entries = [*PageMessage(role="user", text="Hi").to_page(), *shown.to_page()]
    keep(page, entries)
    reload(page)
    expect(notes(page)).to_have_text("a <b>note</b>")
    text = page.locator("#conversation .bot").last
    expect(text).to_contain_text("A <div> where i<b, List<String> and")
    expect(text).to_contain_text("costs $5 or $10.")
    expect(page.locator("#conversation .katex")).to_have_count(4)
    expect(page.locator("#conversation pre")).to_contain_text("return x < 3  # <div> $x$")
    expect(page.locator("#conversation pre .token").first).to_be_visible()
    hebrew = page.get_by_text("\u05e9\u05dc\u05d5\u05dd")
    assert hebrew.evaluate("p => [getComputedStyle(p).unicodeBidi, getComputedStyle(p).textAlign]") == [
        "plaintext",
        "start",
    ]
    expect(page.locator("#conversation")).to_contain_text("Reasoning (2.5s)")
    expect(page.get_by_text("A <b>sum</b>.")).to_be_hidden()
    page.get_by_text("Reasoning").click()
    expect(page.get_by_text("A <b>sum</b>.")).to_be_visible()


def test_a_message_loads_nothing_from_other_hosts(studio: Studio, browser: Browser) -> None:
    """Messages are Markdown, also the model's. The address of a picture in one could leak the conversation."""
    context = browser.new_context()
    page, asked = watch(context.new_page()), []
    context.route("https://elsewhere.example/**", lambda route: (asked.append(route.request.url), route.abort()))
    load(page, studio.url)
    page.evaluate("document.addEventListener('securitypolicyviolation', event => window.blocked = event.blockedURI)")
    ask(page, "Look: ![a picture](https://elsewhere.example/leak.png)")
    page.wait_for_function("window.blocked")
    assert page.evaluate("window.blocked") == "https://elsewhere.example/leak.png"
    assert asked == []
    context.close()
