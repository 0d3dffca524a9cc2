"""Real servers, started once a session, and real browsers that fail a test when a page logs an error."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import httpx
import pytest
import uvicorn
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect, sync_playwright

from tests.chat.conftest import make_model, make_tokenizer

ROOT = Path(__file__).parents[2]
CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Limits end what hangs: they are ten times what a slow machine takes.
START_S = 900
LIMIT_S = 60.0
LIMIT_MS = LIMIT_S * 1000
expect.set_options(timeout=LIMIT_MS)
SECOND = "second"  # the name of `second_model`

# One client for all requests: httpx.get creates one each time, which reads the system's certificates for 40 ms. Each
# request still opens its own connection.
http = httpx.Client(timeout=LIMIT_S, limits=httpx.Limits(max_keepalive_connections=0))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of a server waits for its models; a start without compiled programs takes minutes."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(START_S + 300))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails shows what its servers have said last."""
    report = yield
    for name, value in getattr(item, "funcargs", {}).items():
        if report.failed and isinstance(value, Studio):
            report.sections.append((f"log of {name}", "\n".join(value.output.read_text().splitlines()[-30:])))
    return report


def free_port() -> int:
    """For servers that can't bind port 0: it may be taken before they bind it, so that they are started again."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextmanager
def served(
    serve: Callable[[], Coroutine[Any, Any, uvicorn.Config]], listener: socket.socket | None = None
) -> Iterator[str]:
    """A server in a thread of this process; the value is its address.

    Args:
        serve: makes the app. In the server's event loop: without a running one, Gradio makes its own and never closes
            it.
        listener: a bound socket; None: any port of 127.0.0.1.
    """
    servers: list[uvicorn.Server] = []
    faults: list[BaseException] = []

    async def run(listener: socket.socket) -> None:
        try:
            servers.append(uvicorn.Server(await serve()))
            await servers[0].serve(sockets=[listener])
        except BaseException as fault:
            faults.append(fault)
            raise

    with listener or socket.create_server(("127.0.0.1", 0)) as bound:
        thread = threading.Thread(target=lambda: asyncio.run(run(bound)))
        thread.start()
        try:
            deadline = time.monotonic() + LIMIT_S
            while not (servers and servers[0].started):
                assert faults == []
                assert time.monotonic() < deadline, "the server does not start"
                time.sleep(0.02)
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            for server in servers:
                server.should_exit = server.force_exit = True
            thread.join(LIMIT_S)
            assert not thread.is_alive()


@dataclass(kw_only=True)
class Studio:
    """A running server."""

    process: subprocess.Popen[str]
    url: str
    output: Path
    visitors: Path | None = None  # Gradio's folder for visitors' files
    early_health: list[httpx.Response] = field(default_factory=list)

    def health(self) -> dict[str, Any]:
        return http.get(f"{self.url}/health").json()

    def wait_until(self, holds: Callable[[dict[str, Any]], bool], seconds: float, what: str) -> dict[str, Any]:
        """Poll /health until a condition holds; fails after `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            health = self.health()
            if holds(health):
                return health
            assert time.monotonic() < deadline, f"{what}: not within {seconds} s; {json.dumps(health)}"
            time.sleep(0.1)

    def wait_busy(self, slots: int = 1) -> None:
        self.wait_until(lambda health: health["chat_engine"]["busy"] >= slots, LIMIT_S, f"{slots} slots busy")

    def wait_idle(self) -> dict[str, Any]:
        """The engine's figures, when nothing runs."""

        def idle(health: dict[str, Any]) -> bool:
            return health["chat_engine"]["busy"] == health["chat_engine"]["waiting"] == 0

        return self.wait_until(idle, LIMIT_S, "engine idle")["chat_engine"]


def start(output: Path, **environment: str) -> Studio:
    """Start `python app.py` on a free port; returns when it answers."""
    while (studio := _started(output, **environment)) is None:
        """Another process took the port first."""
    return studio


def _started(output: Path, **environment: str) -> Studio | None:
    port = free_port()
    with output.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "app.py"],
            cwd=ROOT,
            env={**os.environ, "HFJAX_PORT": str(port), **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )
    studio = Studio(process=process, url=f"http://127.0.0.1:{port}", output=output)
    deadline = time.monotonic() + START_S
    while not studio.early_health:
        if process.poll() is not None and f"port {port} is taken" in output.read_text():
            return None
        assert process.poll() is None, output.read_text()
        assert time.monotonic() < deadline, "the server does not answer"
        try:
            studio.early_health.append(http.get(f"{studio.url}/health"))
        except httpx.TransportError:
            time.sleep(0.2)
    return studio


def end(studio: Studio) -> None:
    studio.process.terminate()
    try:
        studio.process.wait(LIMIT_S)
    finally:
        studio.process.kill()


@pytest.fixture(scope="session")
def second_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small chat model of random weights. The embedded ones' programs take a minute to compile."""
    folder = tmp_path_factory.mktemp("models") / SECOND
    make_model("llama").save_pretrained(folder)
    tokenizer = make_tokenizer()
    tokenizer.eos_token = None  # random weights would end some answers before the first token
    tokenizer.chat_template = (  # whose reasoning can be switched off
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if enable_thinking is defined and not enable_thinking %}at once: {% endif %}"
    )
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def studio(tmp_path_factory: pytest.TempPathFactory, second_model: Path) -> Iterator[Studio]:
    """The app as visitors get it: embedded models, all warm, and a second chat model.

    Visitors' files must be deleted at the end.
    """
    visitors = tmp_path_factory.mktemp("visitors")
    studio = start(
        tmp_path_factory.mktemp("studio") / "log",
        GRADIO_TEMP_DIR=str(visitors),
        HFJAX_CHAT_MODEL=f"chat-gemma,{second_model}",
        JAX_DISABLE_MOST_OPTIMIZATIONS="1",  # half the time to compile; the models are so small that they stay quick
    )
    studio.visitors = visitors

    def settled(health: dict[str, Any]) -> bool:
        return all(model["state"] in ("ready", "failed") for model in health["models"])

    warm = studio.wait_until(settled, START_S, "warm")
    assert [model["state"] for model in warm["models"]] == ["ready"] * 4, warm
    yield studio
    end(studio)
    assert [path for path in visitors.rglob("*") if path.is_file()] == []


@pytest.fixture(scope="session")
def slow_studio(tmp_path_factory: pytest.TempPathFactory, slow_model: Path) -> Iterator[Studio]:
    """A server with two slots of a slow chat model; its other two models do not exist."""
    missing = tmp_path_factory.mktemp("missing")
    studio = start(
        tmp_path_factory.mktemp("slow-studio") / "log",
        HFJAX_CHAT_MODEL=str(slow_model),
        HFJAX_SENTIMENT_MODEL=str(missing / "no-sentiment"),
        HFJAX_IMAGE_MODEL=str(missing / "no-images"),
        HFJAX_SLOTS="2",
        HFJAX_CONTEXT="512",
        JAX_DISABLE_MOST_OPTIMIZATIONS="1",  # slow programs, quick compilation
    )
    states = {"chat": "ready", "sentiment": "failed", "images": "failed"}
    studio.wait_until(
        lambda health: {name: backend["state"] for name, backend in health["backends"].items()} == states,
        START_S,
        "settled",
    )
    yield studio
    end(studio)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser per file: while it is open, Playwright runs this thread's event loop, and no test may use asyncio."""
    if not CHROMIUM.exists():
        pytest.skip(f"browser tests need Debian's chromium at {CHROMIUM}: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


# The requests that a page waits for, but for those of every page: whether the server is there.
_waits: WeakKeyDictionary[Page, set[Request]] = WeakKeyDictionary()
_LASTING = ("/heartbeat/", "/live")
# Gradio draws in pieces, between which nothing is to do for a few milliseconds at most.
_QUIET = """() => new Promise(done => {
    let changed = performance.now()
    const observer = new MutationObserver(() => { changed = performance.now() })
    observer.observe(document, {subtree: true, childList: true, attributes: true, characterData: true})
    const look = () => requestIdleCallback(() => {
        if (performance.now() - changed < 100) setTimeout(look, 20)
        else { observer.disconnect(); done() }
    }, {timeout: 5000})
    look()
})"""


def watch(page: Page) -> Page:
    """Prepare a new page for `settled`."""
    waits = _waits[page] = set()

    def begin(request: Request) -> None:
        if request.is_navigation_request() and request.frame == page.main_frame:
            waits.clear()  # the document before it waits no longer
        if not any(part in request.url for part in _LASTING):
            waits.add(request)

    page.on("request", begin)
    for end in ("requestfinished", "requestfailed"):
        page.on(end, lambda request: waits.discard(request))
    page.set_default_timeout(2 * LIMIT_MS)
    return page


def settled(page: Page) -> Page:
    """Wait until the page is drawn: it waits for no answer, its thread is idle, and nothing on it changes.

    Gradio mounts parts of a page when they are opened, and then sets their values: what is typed meanwhile is lost.
    """
    deadline = time.monotonic() + LIMIT_S
    while True:
        page.evaluate(_QUIET)
        if not _waits[page]:
            return page
        assert time.monotonic() < deadline, [request.url for request in _waits[page]]


def load(page: Page, url: str) -> Page:
    """Go there, and wait until the page is drawn."""
    page.goto(url)
    return settled(page)


def reload(page: Page) -> Page:
    """Load it again once it waits for nothing: Gradio logs an error where that interrupts a stream."""
    settled(page).reload()
    return settled(page)


def open_tab(page: Page, name: str) -> Page:
    page.get_by_role("tab", name=name).click()
    return settled(page)


def asks_nothing(page: Page, *, but: str = "/live", for_ms: float = 2_000) -> None:
    """Wait until the page sends no request for a while, in which a page that polls would, but those that end so."""
    asked: list[str] = []
    page.on("request", lambda request: None if request.url.endswith(but) else asked.append(request.url))
    deadline = time.monotonic() + LIMIT_S
    while True:
        asked.clear()
        page.wait_for_timeout(for_ms)
        if not asked:
            return
        assert time.monotonic() < deadline, asked


@contextmanager
def running(page: Page, sign: str, within_ms: float) -> Iterator[None]:
    """Run the block, and wait until what it starts has ended: `sign`, a selector, has appeared and disappeared."""
    there = f"document.querySelector({json.dumps(sign)})"
    page.evaluate(f"""
        window.hasRun = false;
        new MutationObserver(() => {{ window.hasRun ||= {there} !== null; }})
            .observe(document.body, {{attributes: true, childList: true, subtree: true}});
    """)
    yield
    page.wait_for_function(f"window.hasRun && !{there}", timeout=within_ms, polling=50)


class Visits:
    """Pages, each in its own browser profile. Records their faults: logged errors and requests to other hosts."""

    def __init__(self, browser: Browser):
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self._faults: list[str] = []
        self._pages: dict[tuple[str, int], Page] = {}

    def open(
        self, studio: Studio, *, width: int = 1280, tab: str = "Chat", before: Callable[[Page], None] | None = None
    ) -> Page:
        context = self._browser.new_context(viewport={"width": width, "height": 900})
        self._contexts.append(context)
        page = watch(context.new_page())
        page.on("console", lambda message: self._faults.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self._faults.append(str(error)))
        local = (studio.url, "data:", "blob:")
        page.on("request", lambda request: None if request.url.startswith(local) else self._faults.append(request.url))
        if before is not None:
            before(page)
        return open_tab(load(page, studio.url), tab)

    def again(self, studio: Studio, *, width: int = 1280, tab: str = "Chat") -> Page:
        """The page that was opened before, with its messages closed; a new page if there is none."""
        if (studio.url, width) not in self._pages:
            self._pages[studio.url, width] = self.open(studio, width=width, tab=tab)
        page = self._pages[studio.url, width]
        page.locator(".toast-close").evaluate_all("buttons => buttons.forEach(button => button.click())")
        return open_tab(page, tab)

    def check(self) -> None:
        faults, self._faults = self._faults, []
        assert faults == []

    def messages(self) -> list[str]:
        """The messages that the lasting pages show."""
        return [text for page in self._pages.values() for text in page.locator(".toast-wrap").all_inner_texts()]

    def close(self) -> None:
        for context in self._contexts:
            context.close()
        self._contexts, self._pages = [], {}
        self.check()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Page]]:
    """visit(studio, width=1280, tab="Chat") opens a page for this test alone."""
    visits = Visits(browser)
    yield visits.open
    visits.close()


@pytest.fixture(scope="module")
def _lasting(browser: Browser) -> Iterator[Visits]:
    visits = Visits(browser)
    yield visits
    visits.close()


@pytest.fixture
def revisit(_lasting: Visits, request: pytest.FixtureRequest) -> Iterator[Callable[..., Page]]:
    """revisit(studio, width=1280, tab="Chat") continues on the page that the file's last test used.

    Loading a page takes seconds. A test that fails leaves no page behind.
    """
    failed = request.session.testsfailed
    yield _lasting.again
    if request.session.testsfailed > failed:
        print("messages on the page:", _lasting.messages())
        _lasting.close()
    _lasting.check()
