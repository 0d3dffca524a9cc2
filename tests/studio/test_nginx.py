"""The studio behind nginx with deploy/nginx.conf, under a prefix: page, streams, uploads and downloads."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn
from playwright.sync_api import Browser, ConsoleMessage, expect

from hfjax_app.backends import Backends
from hfjax_app.runtime.seams.server import PatientForAWhile
from hfjax_app.server.app import Studio, build_app
from hfjax_app.settings import Settings

from .conftest import LIMIT_S, ROOT, free_port, served

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A studio whose models were never started, under http://127.0.0.1:PORT/studio/."""
    if NGINX is None:
        pytest.skip("nginx is not installed: apt-get install nginx-light")
    folder: Path = tmp_path_factory.mktemp("nginx")

    async def serve() -> uvicorn.Config:
        studio: Studio = build_app(Backends(Settings(root_path="/studio")))
        return uvicorn.Config(studio.app, http=PatientForAWhile, proxy_headers=False, log_level="warning")

    with served(serve) as inner:
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


def test_a_forwarded_address_is_believed_only_from_a_proxy() -> None:
    """X-Forwarded-* was believed from everybody."""
    from starlette.testclient import TestClient

    from hfjax_app.server.middleware import Edge

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
