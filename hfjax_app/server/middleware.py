"""ASGI middleware: limits the size of requests, and what a page may load."""

import os

from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyLimit:
    """Rejects requests whose body is longer than `limit` bytes, also if their length was not declared."""

    def __init__(self, app: ASGIApp, limit: int):
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > self._limit:
            given = f"{int(declared):,} bytes" if declared.isdigit() else "unknown length"
            detail = f"request of {given}: at most {self._limit:,} bytes; send a smaller file or picture"
            await JSONResponse({"detail": detail}, status_code=413)(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._limit:
                return {"type": "http.disconnect"}
            return message

        await self._app(scope, counted, send)


class ContentPolicy:
    """Prevents pages from loading pictures and the like from other hosts.

    A model's answer is Markdown and may name a picture, whose address could leak the conversation. Answers can contain
    neither scripts nor connections, so the policy does not restrict those.
    """

    def __init__(self, app: ASGIApp):
        self._app = app
        # The bar above the page of a Space shows the owner's picture.
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
