"""Which of Gradio's routes exist: those that the studio uses, and no others of the pinned version or a later one."""

import asyncio
from collections.abc import Iterator
from typing import Any

import gradio as gr
import pytest
from gradio.routes import App

from hfjax_app.server.gradio_routes import is_allowed

from .conftest import Studio, http

# The routes of Gradio 6.31, by whether the studio uses them. Events have routes of the studio's own.
USED = {
    "/",
    "/config",
    "/config/",
    "/theme.css",
    "/assets/{path:path}",
    "/static/{path:path}",
    "/favicon.ico",
    "/robots.txt",
    "/logout",
    "/gradio_api/theme.css",
    "/gradio_api/info",
    "/gradio_api/info/",
    "/gradio_api/app_id",
    "/gradio_api/app_id/",
    "/gradio_api/heartbeat/{session_hash}",
    "/gradio_api/upload",
    "/gradio_api/upload_progress",
    "/gradio_api/file={path_or_url:path}",
}
OWN = {"/queue/join", "/queue/data", "/call/{api_name}", "/call/v2/{api_name}", "/cancel", "/reset", "/run/{api_name}"}
LOGIN = {"/login", "/login/"}


def routes_of(routes: list[Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Methods and paths, also of included routers."""
    for route in routes:
        if (router := getattr(route, "original_router", None)) is not None:
            yield from routes_of(router.routes, prefix)
        else:
            yield from ((method, prefix + route.path) for method in route.methods or ())


def test_every_route_of_gradio_is_known() -> None:
    """A new version of Gradio brings new routes; each must be used, or refused."""

    async def build() -> App:  # without a running loop, Gradio makes its own and never closes it
        with gr.Blocks() as page:
            pass
        page.run_history = False
        return App.create_app(page)

    app = asyncio.run(build())
    seen = set()
    for method, path in routes_of(app.routes):
        example = (
            path.replace("{path:path}", "a.js")
            .replace("{path_or_url:path}", "/tmp/a")
            .replace("{", "")
            .replace("}", "")
        )
        allowed = is_allowed(method, example) is not None
        assert allowed == (path in USED), (method, path)
        seen.add(path)
    assert seen >= USED
    assert {f"/gradio_api{path}" for path in OWN} <= seen, "those that the studio's own routes replace"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/gradio_api/dev/reload"),
        ("GET", "/gradio_api/startup-events"),
        ("POST", "/gradio_api/component_server"),
        ("POST", "/gradio_api/process_recording"),
        ("GET", "/gradio_api/proxy=https://example.hf.space/x"),
        ("GET", "/gradio_api/file=https://example.invalid/x"),
        ("GET", "/gradio_api/deep_link"),
        ("POST", "/gradio_api/api/chat"),
        ("POST", "/gradio_api/vibe-edit"),
        ("GET", "/gradio_api/queue/status"),
        ("POST", "/gradio_api/stream/1"),
        ("GET", "/monitoring"),
        ("GET", "/manifest.json"),
        ("DELETE", "/"),
    ],
)
def test_other_routes_are_closed(studio: Studio, method: str, path: str) -> None:
    assert http.request(method, f"{studio.url}{path}").status_code in (404, 405)
