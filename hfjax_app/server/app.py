"""The web app: the studio's page, /health, limits on what clients send, and on what a page may load."""

import os
from dataclasses import asdict
from typing import Any

import gradio as gr
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hfjax_app.backends import Backends
from hfjax_app.studio.page import build_studio
from hfjax_app.studio.scripts import run_first
from hfjax_app.studio.theme import CSS, HEAD, theme

MAX_BODY = 16 << 20  # bytes of one request: a picture of the largest size as text, and a little more
MAX_UPLOAD = "10mb"  # of a file; the backends look closer


def studio_app(backends: Backends) -> FastAPI:
    """The studio as an ASGI app with its page at / and the state of the backends at /health."""
    run_first()
    app = FastAPI(openapi_url=None)
    app.add_middleware(BodyLimit, limit=MAX_BODY)
    app.add_middleware(ContentPolicy)

    @app.get("/gradio_api/deep_link")
    def no_links() -> JSONResponse:
        """Gradio would write a session's values to files that nothing deletes."""
        return JSONResponse({"detail": "this studio makes no links to a page's values"}, status_code=404)

    @app.api_route("/health", methods=["GET", "HEAD"])
    def health() -> JSONResponse:
        state = _health(backends)
        return JSONResponse(state, status_code=200 if state["status"] == "ready" else 503)

    return gr.mount_gradio_app(
        app,
        build_studio(backends),
        path="/",
        theme=theme(),
        css_paths=[CSS],
        head=HEAD,
        show_error=False,
        max_file_size=MAX_UPLOAD,
        footer_links=["api", "settings"],
        run_history=False,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        enable_monitoring=False,
    )


def _health(backends: Backends) -> dict[str, Any]:
    states = [backend.state for backend in backends.all]
    chat = backends.chat
    return {
        "status": "failed" if "failed" in states else "ready" if set(states) == {"ready"} else "warming up",
        "device": backends.device(),
        "backends": {
            backend.kind: {
                "model": backend.name,
                "state": backend.state,
                "programs": len(backend.reports),
                "progress": backend.progress,
                "error": backend.error,
            }
            for backend in backends.all
        },
        "chat_engine": asdict(chat.get().engine.stats()) if chat.state == "ready" else None,
        "compilations": backends.compiler.compilations,
        "from_cache": backends.compiler.from_cache,
    }


class BodyLimit:
    """Refuses requests whose body is longer than `limit` bytes with 413, also when they don't say so beforehand."""

    def __init__(self, app: ASGIApp, limit: int):
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > self._limit:
            await self._refuse(scope, receive, send)
            return
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._limit:
                return {"type": "http.disconnect"}
            return message

        await self._app(scope, counted, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = JSONResponse({"detail": f"a request may have at most {self._limit:,} bytes"}, status_code=413)
        await response(scope, receive, send)


class ContentPolicy:
    """Keeps pages from loading anything from elsewhere that a model's answer, which is Markdown, may name.

    The address of a picture could carry away what was said. Scripts and connections are none of an answer's, and are
    left as Gradio has them.
    """

    def __init__(self, app: ASGIApp):
        self._app = app
        # The bar that a Space puts above the page shows its owner's picture.
        hub = " https://huggingface.co https://*.huggingface.co" if "SPACE_ID" in os.environ else ""
        own = "'self' data: blob:"
        self._policy = (
            f"img-src {own}{hub}; media-src {own}; font-src {own}; style-src 'self' 'unsafe-inline'; "
            "frame-src 'self'; object-src 'none'; form-action 'self'"
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Content-Security-Policy"] = self._policy
            await send(message)

        await self._app(scope, receive, with_policy)
