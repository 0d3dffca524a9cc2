"""ASGI middleware for HTTP headers: proxies that are believed, cookies that are read, what a page may load and run."""

import os
import secrets
from collections.abc import Collection
from typing import Any, cast

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from hfjax_app.runtime.seams.server import trusted_by
from hfjax_app.studio.scripts import NONCE


class Forwarded:
    """Believes X-Forwarded-* from the operator's proxies; from others, removes them.

    Args:
        app: sees the client's address and scheme.
        trusted: addresses and networks with commas, or * for all.
    """

    def __init__(self, app: ASGIApp, trusted: str):
        proxied = ProxyHeadersMiddleware(cast(Any, app), trusted_hosts=trusted)
        self._app, self._trusted = app, trusted_by(proxied)
        self._proxied = cast(ASGIApp, proxied)  # the types of uvicorn and Starlette say the same in two ways

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        peer = (scope.get("client") or ("",))[0]
        if scope["type"] != "http" or peer in self._trusted:
            await self._proxied(scope, receive, send)
            return
        headers = [each for each in scope["headers"] if not each[0].startswith(b"x-forwarded-")]
        await self._app({**scope, "headers": headers}, receive, send)


class OwnCookies:
    """Removes cookies that are not this app's, and those with quotes, which it never sets.

    Until its version 3.11.10, Python takes 14 s to read a cookie of 60 KB in quotes, and Starlette reads all of them.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]):
        self._app, self._names = app, {name.encode() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and any(name == b"cookie" for name, _ in scope["headers"]):
            headers = [each for each in scope["headers"] if each[0] != b"cookie"]
            cookies = b";".join(value for name, value in scope["headers"] if name == b"cookie").split(b";")
            own = [each for each in cookies if each.partition(b"=")[0].strip() in self._names and b'"' not in each]
            scope = {**scope, "headers": [*headers, *([(b"cookie", b";".join(own))] if own else [])]}
        await self._app(scope, receive, send)


class SecurityHeaders:
    """Limits what a page may load and run, and what browsers may make of other answers.

    A model's answer is Markdown and may name a picture, whose address could leak the conversation. Scripts must be
    files of this server, or carry the page's nonce; Gradio makes functions of the events' `js`, which needs
    'unsafe-eval'.
    """

    def __init__(self, app: ASGIApp):
        self._app = app
        in_space = "SPACE_ID" in os.environ
        # The bar above the page of a Space shows the owner's picture, and the Space's page frames this one.
        hub = " https://huggingface.co https://*.huggingface.co" if in_space else ""
        framed_by = f"'self'{hub} https://*.hf.space" if in_space else "'self'"
        own = "'self' data: blob:"
        self._policy = (
            f"default-src 'self'; img-src {own}{hub}; media-src {own}; font-src {own}; connect-src {own}; "
            "style-src 'self' 'unsafe-inline'; worker-src 'self' blob:; frame-src 'self'; object-src 'none'; "
            f"base-uri 'self'; form-action 'self'; frame-ancestors {framed_by}; script-src 'self' 'unsafe-eval'"
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        nonce = scope[NONCE] = secrets.token_urlsafe(16)

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = f"{self._policy} 'nonce-{nonce}'"
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "same-origin"
                if headers.get("content-type", "").startswith("text/event-stream"):
                    headers["X-Accel-Buffering"] = "no"  # nginx would hold the whole stream back
            await send(message)

        await self._app(scope, receive, secured)
