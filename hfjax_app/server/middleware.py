"""ASGI middleware: how much a request may bring, and what a page may load."""

import os

from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


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
            given = f"{int(declared):,} bytes" if declared.isdigit() else "unknown length"
            says = f"request of {given}: at most {self._limit:,} bytes; send a smaller file or picture"
            await JSONResponse({"detail": says}, status_code=413)(scope, receive, send)
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
