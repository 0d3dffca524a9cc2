"""The studio behind nginx with deploy/nginx.conf, under a prefix: page, streams, uploads and downloads."""

import json
import re
import shutil
import subprocess
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from openai import OpenAI
from playwright.sync_api import Browser, ConsoleMessage, expect

from hfjax_app.backends import Backends
from hfjax_app.runtime.seams.server import TimedProtocol
from hfjax_app.server.app import Studio, build_app
from hfjax_app.settings import Settings

from .conftest import (
    LIMIT_MS,
    LIMIT_S,
    ROOT,
    START_S,
    end,
    free_port,
    load,
    open_tab,
    running,
    served,
    settled,
    start,
    watch,
)

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A studio whose models were never started, under http://127.0.0.1:PORT/studio/."""
    if NGINX is None:
        pytest.skip("nginx is not installed: apt-get install nginx-light")
    folder: Path = tmp_path_factory.mktemp("nginx")

    async def serve() -> uvicorn.Config:
        studio: Studio = build_app(Backends(Settings(root_path="/studio")))
        return uvicorn.Config(studio.app, http=TimedProtocol, proxy_headers=False, log_level="warning")

    with served(serve) as inner, behind_nginx(folder, inner) as outer:
        yield outer


@pytest.fixture(scope="module")
def warm_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The same with models that answer."""
    if NGINX is None:
        pytest.skip("nginx is not installed: apt-get install nginx-light")
    folder: Path = tmp_path_factory.mktemp("nginx-warm")
    studio = start(folder / "log", HFJAX_ROOT_PATH="/studio", JAX_DISABLE_MOST_OPTIMIZATIONS="1")
    try:
        studio.wait_until(lambda health: health["status"] == "ready", START_S, "warm")
        with behind_nginx(folder, studio.url) as outer:
            yield outer
    finally:
        end(studio)


@contextmanager
def behind_nginx(folder: Path, inner: str) -> Iterator[str]:
    """nginx before the server `inner`; the value is the studio's address."""
    while (nginx := started(folder, inner)) is None:
        """Another process took the port first."""
    process, outer = nginx
    with process:
        yield f"{outer}/studio"
        process.terminate()


def started(folder: Path, inner: str) -> tuple[subprocess.Popen[bytes], str] | None:
    """nginx before the server `inner`, when it answers, and its address; None: its port is taken."""
    port, config = free_port(), (ROOT / "deploy" / "nginx.conf").read_text()
    address = f"127.0.0.1:{port}"
    temporary = " ".join(f"{kind}_temp_path {folder};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    for old, new in (
        ("127.0.0.1:7860;", f"{inner.removeprefix('http://')};"),
        ("listen 80;", f"listen {address};"),
        ("access_log off;", f"access_log off; {temporary}"),
    ):
        assert config.count(old) == 1
        config = config.replace(old, new)
    (folder / "nginx.conf").write_text(config)
    options = f"daemon off; pid {folder}/pid; error_log {folder}/error.log; user root;"
    nginx = subprocess.Popen([str(NGINX), "-p", folder, "-c", folder / "nginx.conf", "-g", options])
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            if httpx.get(f"http://{address}/studio/live").status_code == 200:
                return nginx, f"http://{address}"
        except httpx.TransportError:
            if nginx.poll() is not None:
                said = (folder / "error.log").read_text()
                assert "Address already in use" in said, said
                return None
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_page_loads_from_its_prefix(site: str, browser: Browser) -> None:
    page = browser.new_page()
    faults: list[str] = []

    def note(message: ConsoleMessage) -> None:  # browsers look for an icon outside of the prefix
        if message.type == "error" and not message.location["url"].endswith("/favicon.ico"):
            faults.append(message.text)

    page.on("console", note)
    page.on("response", lambda answer: faults.append(answer.url) if answer.status >= 400 else None)
    page.goto(f"{site}/")
    expect(page.locator("#status-line .chip.waiting")).to_have_count(3)
    assert faults == [], faults
    page.close()


def test_addresses_are_nginx_s(site: str) -> None:
    """Also from a client that sends X-Forwarded-Host itself."""
    config = httpx.get(f"{site}/config", headers={"X-Forwarded-Host": "evil.example"}).json()
    assert config["root"] == site


def test_streams_are_not_held_back(site: str) -> None:
    """With nginx's buffering, the first byte of a stream came after 2.1 s."""
    with httpx.stream("GET", f"{site}/gradio_api/heartbeat/nginx", timeout=LIMIT_S) as stream:
        assert next(stream.iter_lines()) == "data: ALIVE"
        assert "x-accel-buffering" not in stream.headers, "nginx has read it"


def test_large_files_go_up_and_come_down(site: str) -> None:
    """nginx's default limit is 1 MB."""
    content = b"text\n" + b"x" * (5 << 20)
    [path] = httpx.post(f"{site}/gradio_api/upload", files={"files": ("list.csv", content)}, timeout=LIMIT_S).json()
    assert httpx.get(f"{site}/gradio_api/file={path}", timeout=LIMIT_S).content == content
    over = httpx.post(f"{site}/gradio_api/upload", content=b"x" * (17 << 20), timeout=LIMIT_S)
    assert over.status_code == 413


@pytest.mark.slow
def test_files_of_visitors_pass_through_a_browser(warm_site: str, browser: Browser, tmp_path: Path) -> None:
    """A list goes up and its results come down, pictures come as a zip file, and an answer of /v1 streams."""
    page = watch(browser.new_page())
    faults: list[str] = []
    page.on("response", lambda answer: faults.append(answer.url) if answer.status >= 400 else None)
    load(page, f"{warm_site}/")
    open_tab(page, "Sentiment")
    open_tab(page, "Many texts")
    (tmp_path / "list.csv").write_text("text,label\n" + "I loved it,1\nIt was awful,0\n" * 6)
    page.locator("#many-file input[type=file]").set_input_files(tmp_path / "list.csv")
    expect(page.locator("#many-progress")).to_contain_text("list.csv: 12 rows")
    settled(page).locator("#classify-all").click()
    expect(page.locator("#many-progress")).to_contain_text("12 rows in")
    settled(page)
    with page.expect_download() as results:
        page.locator("#many-download").click()
    results.value.save_as(tmp_path / "results.csv")
    assert (tmp_path / "results.csv").read_text(encoding="utf-8-sig").count("\n") == 13
    open_tab(page, "Images")
    for prompt in ("a red circle", "a yellow star"):
        page.locator("#prompt textarea").fill(prompt)
        with running(page, "#cancel:enabled", LIMIT_MS):
            page.locator("#prompt textarea").press("Enter")
        settled(page)
    with page.expect_download() as pictures:
        page.locator("#all-as-zip").click()
    pictures.value.save_as(tmp_path / "pictures.zip")
    with zipfile.ZipFile(tmp_path / "pictures.zip") as archive:
        assert len([name for name in archive.namelist() if name.endswith(".png")]) == 2
    assert faults == []
    page.close()
    with OpenAI(base_url=f"{warm_site}/v1", api_key="none", max_retries=0) as client:
        asked: Any = [{"role": "user", "content": "What is JAX?"}]
        events = list(client.chat.completions.create(model="chat-gemma", messages=asked, stream=True, temperature=0))
    assert "Python" in "".join(event.choices[0].delta.content or "" for event in events)
    assert len(events) > 3


def test_a_forwarded_address_is_believed_only_from_a_proxy() -> None:
    """X-Forwarded-* was believed from everybody."""
    from starlette.testclient import TestClient

    from hfjax_app.server.app import Edge

    async def app(scope, receive, send):  # type: ignore[no-untyped-def]
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        body = json.dumps([scope["client"][0], scope["scheme"], headers.get("x-forwarded-host")]).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    sent = {"X-Forwarded-For": "1.2.3.4", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "evil.example"}
    for trusted, seen in (
        ("10.0.0.0/8", ["10.1.2.3", "1.2.3.4", "https", "evil.example"]),
        ("10.0.0.0/8", ["9.1.2.3", "9.1.2.3", "http", None]),
        ("*", ["9.1.2.3", "1.2.3.4", "https", "evil.example"]),
    ):
        client = TestClient(Edge(app, trusted=trusted), client=(seen[0], 5))
        assert client.get("/", headers=sent).json() == seen[1:]


def test_headers(site: str) -> None:
    page = httpx.get(f"{site}/")
    policy = page.headers["content-security-policy"]
    [nonce] = re.findall(r"'nonce-([\w-]+)'", policy)
    scripts = re.findall(r"<script[^>]*>", page.text)
    assert len(scripts) > 4
    assert all(f'nonce="{nonce}"' in script for script in scripts)
    assert httpx.get(f"{site}/").headers["content-security-policy"] != policy
    assert "frame-ancestors 'self';" in policy
    scripts_from = re.search(r"script-src ([^;]*)", policy)[1]
    assert "unsafe-inline" not in scripts_from
    for name, value in (("x-content-type-options", "nosniff"), ("referrer-policy", "same-origin")):
        assert page.headers[name] == value


@pytest.mark.parametrize("path", ["/config", "/gradio_api/call/classify", "/health"])
def test_other_origins_are_shut_out(site: str, path: str) -> None:
    """Gradio let in all origins, with credentials."""
    answer = httpx.get(f"{site}{path}", headers={"Origin": "https://evil.example"})
    assert not any(name.startswith("access-control-allow") for name in answer.headers)
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    assert httpx.options(f"{site}{path}", headers=asked).status_code == 400
