"""The frame of the page in a browser: tabs, theme, the server's state, what a page costs."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from .conftest import Studio, http, load, reload, settled, watch
from .test_accessibility import still

Visit = Callable[..., Page]
# What a page may cost. A stock chat of Gradio makes 44 requests.
MAX_BYTES, MAX_REQUESTS = 800_000, 107


@pytest.fixture
def page(studio: Studio, revisit: Visit) -> Page:
    return revisit(studio)


def test_tabs_have_addresses(page: Page) -> None:
    """A tab's address opens it, going back returns to the tab before, and the title says which it is."""
    page.get_by_role("tab", name="Sentiment").click()
    expect(page).to_have_url(re.compile("#sentiment$"))
    expect(page).to_have_title("Sentiment · hfjax studio")
    reload(page)
    expect(page.locator("#classify")).to_be_visible()
    page.get_by_role("tab", name="Images").click()
    expect(page.locator("#generate")).to_be_visible()
    page.go_back()
    expect(page.locator("#classify")).to_be_visible()
    expect(page).to_have_title("Sentiment · hfjax studio")


def test_tabs_follow_arrow_keys(page: Page) -> None:
    """As the pattern of the ARIA Authoring Practices asks: one tab stop, arrows, Home and End."""
    chat, sentiment, engine = (page.get_by_role("tab", name=name) for name in ("Chat", "Sentiment", "Engine"))
    chat.focus()
    page.keyboard.press("ArrowRight")
    expect(sentiment).to_be_focused()
    expect(sentiment).to_have_attribute("aria-selected", "true")
    expect(chat).to_have_attribute("tabindex", "-1")
    page.keyboard.press("End")
    expect(engine).to_be_focused()
    page.keyboard.press("Home")
    expect(chat).to_have_attribute("aria-selected", "true")
    page.get_by_role("link", name="Skip to the page").press("Enter")
    expect(page.get_by_role("tabpanel", name="Chat")).to_be_focused()


def test_the_theme_is_chosen_and_kept(page: Page) -> None:
    """In the dark, what is nearer is lighter: the page, a card, and nothing white."""

    def lightness(selector: str) -> float:
        channels = still(page, selector, "backgroundColor")
        return sum(map(int, re.findall(r"\d+", channels)[:3]))

    page.get_by_role("button", name="Light or dark").click()
    reload(page)
    expect(page.locator("body")).to_have_class(re.compile(r"\bdark\b"))
    page.get_by_role("tab", name="Sentiment").click()
    expect(page.locator("#classify")).to_be_visible()
    assert lightness("body") < lightness("#sentiment-text textarea") < 200
    page.get_by_role("button", name="Light or dark").click()
    expect(page.locator("body")).not_to_have_class(re.compile(r"\bdark\b"))


@pytest.fixture(scope="module")
def _unwatched(browser: Browser) -> Iterator[Page]:
    page = watch(browser.new_page())
    yield page
    page.close()


@pytest.fixture
def unwatched(studio: Studio, _unwatched: Page) -> Page:
    """A page that may log errors, just loaded."""
    return load(_unwatched, studio.url)


def test_a_lost_server_is_said(unwatched: Page) -> None:
    """The dots stayed green."""
    page = unwatched
    state = page.locator("#status-line .state")
    expect(state).to_contain_text("all warm")
    page.route("**/live", lambda route: route.fulfill(status=502))
    page.evaluate("dispatchEvent(new Event('offline'))")
    expect(state).to_have_text(re.compile("the server is gone"), use_inner_text=True)
    expect(page.get_by_role("status").filter(has_text="The server is gone")).to_be_attached()
    dot = still(page, "#status-line .state .dot", "backgroundColor")
    page.unroute("**/live")
    page.evaluate("dispatchEvent(new Event('online'))")
    expect(state).to_have_text(re.compile("all warm"), use_inner_text=True)
    assert dot != still(page, "#status-line .state .dot", "backgroundColor")


@pytest.mark.parametrize("width", [390, 1280])
def test_the_api_is_a_click_away(unwatched: Page, width: int) -> None:
    """Gradio hides its link on phones, and offers settings with a screen recorder. Its list of endpoints asks for more
    than there is."""
    unwatched.set_viewport_size({"width": width, "height": 900})
    expect(unwatched.locator("footer .settings, footer .built-with")).to_have_count(0)
    unwatched.get_by_role("link", name="API").click()
    expect(unwatched.get_by_role("dialog")).to_contain_text("/chat")


def test_the_page_says_what_it_is(studio: Studio) -> None:
    """Links to it were shown with Gradio's picture, and its icon was Gradio's."""
    text = http.get(studio.url).text
    assert "gradio.app" not in text.split("window.gradio_config")[0]
    assert "twitter:" not in text
    assert '<meta name="description"' in text
    icon = http.get(f"{studio.url}/favicon.ico")
    assert icon.headers["content-type"] == "image/svg+xml"
    assert "<rect" in icon.text


def test_what_a_page_costs(studio: Studio, visit: Visit) -> None:
    """Parts of a tab are loaded when it is opened."""
    costs: list[float] = []

    def count(page: Page) -> None:
        session: Any = page.context.new_cdp_session(page)
        session.send("Network.enable")
        session.on("Network.loadingFinished", lambda event: costs.append(event["encodedDataLength"]))

    page = visit(studio, before=count)
    expect(page.locator("#message textarea")).to_be_visible()
    settled(page)
    assert sum(costs) < MAX_BYTES
    assert len(costs) < MAX_REQUESTS
    assert page.locator("#generate").count() == 0
