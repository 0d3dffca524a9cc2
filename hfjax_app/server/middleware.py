"""ASGI middleware: what a page may load."""

import os

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


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
