"""The outermost layer of the web app: what every request loses, and what every answer gets.

- `/live` is answered before anything else is done.
- X-Forwarded-* is believed from the operator's proxies, and removed from others.
- Cookies that are not this app's are removed, and those with quotes, which it never sets: until its version 3.11.10,
  Python takes 14 s to read a cookie of 60 KB in quotes, and Starlette reads all of them.
- Answers limit what a page may load and run, and what browsers may make of them. A model's answer is Markdown and may
  name a picture, whose address could leak the conversation. Scripts must be files of this server, or carry the page's
  nonce; Gradio makes functions of the events' `js`, which needs 'unsafe-eval'.
"""

import os
import secrets
from collections.abc import Collection
from typing import Any, cast

from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from hfjax_app.runtime.seams.server import trusted_by
from hfjax_app.studio.scripts import NONCE

_Headers = list[tuple[bytes, bytes]]


class Edge:
    """ASGI middleware, see the module.

    Args:
        app: sees the client's address and scheme.
        trusted: addresses and networks of proxies with commas, or * for all.
        cookies: the names of this app's.
        frames: origins whose pages may embed this app's, with commas, or * for all.
    """

    def __init__(self, app: ASGIApp, *, trusted: str, cookies: Collection[str] = (), frames: str = ""):
        proxied = ProxyHeadersMiddleware(cast(Any, app), trusted_hosts=trusted)
        self._app, self._trusted = app, trusted_by(proxied)
        self._proxied = cast(ASGIApp, proxied)  # the types of uvicorn and Starlette say the same in two ways
        self._cookies = {name.encode() for name in cookies}
        self._policy = _policy(in_space="SPACE_ID" in os.environ, frames=frames)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._proxied(scope, receive, send)
            return
        if scope["path"] == "/live" and scope["method"] in ("GET", "HEAD"):
            await JSONResponse({"status": "live"})(scope, receive, send)
            return
        nonce, headers = secrets.token_urlsafe(16), self._own_cookies(scope["headers"])
        is_believed = (scope.get("client") or ("",))[0] in self._trusted
        if not is_believed:
            headers = [each for each in headers if not each[0].startswith(b"x-forwarded-")]

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                answer["Content-Security-Policy"] = f"{self._policy} 'nonce-{nonce}'"
                answer["X-Content-Type-Options"] = "nosniff"
                answer["Referrer-Policy"] = "same-origin"
                if answer.get("content-type", "").startswith("text/event-stream"):
                    answer["X-Accel-Buffering"] = "no"  # nginx would hold the whole stream back
            await send(message)

        app = self._proxied if is_believed else self._app
        await app({**scope, "headers": headers, NONCE: nonce}, receive, secured)

    def _own_cookies(self, headers: _Headers) -> _Headers:
        cookies = [value for name, value in headers if name == b"cookie"]
        if not cookies:
            return headers
        each = b";".join(cookies).split(b";")
        own = [one for one in each if one.partition(b"=")[0].strip() in self._cookies and b'"' not in one]
        rest = [header for header in headers if header[0] != b"cookie"]
        return [*rest, (b"cookie", b";".join(own))] if own else rest


def _policy(*, in_space: bool, frames: str) -> str:
    """The Content-Security-Policy, without the nonce at its end."""
    # The bar above the page of a Space shows the owner's picture, and the Space's page frames this one.
    hub = " https://huggingface.co https://*.huggingface.co" if in_space else ""
    framed_by = " ".join(
        [f"'self'{hub} https://*.hf.space" if in_space else "'self'", *filter(None, frames.split(","))]
    )
    own = "'self' data: blob:"
    return (
        f"default-src 'self'; img-src {own}{hub}; media-src {own}; font-src {own}; connect-src {own}; "
        "style-src 'self' 'unsafe-inline'; worker-src 'self' blob:; frame-src 'self'; object-src 'none'; "
        f"base-uri 'self'; form-action 'self'; frame-ancestors {framed_by}; script-src 'self' 'unsafe-eval'"
    )
