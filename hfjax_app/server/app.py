"""The web app, assembled: the studio's page at /, /health, and the middleware around both.

The outermost layer (`Edge`) is what every request loses, and what every answer gets:

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
from dataclasses import dataclass
from typing import Any, cast

import gradio as gr
from fastapi import FastAPI
from prometheus_client.registry import Collector
from starlette.datastructures import MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from hfjax_app.api.mcp import PATH as MCP_PATH
from hfjax_app.api.mcp import mcp_app
from hfjax_app.api.v1.routes import add_docs, api_router
from hfjax_app.backends import Backends
from hfjax_app.client import client_of
from hfjax_app.limits import HTTP_MAX_UPLOAD
from hfjax_app.runtime.seams.gradio import App, Event, add_space_login
from hfjax_app.runtime.seams.server import trusted_by
from hfjax_app.server.credentials import Credentials, user_of
from hfjax_app.server.door import COOKIE, OAUTH_COOKIE, Door, Login, Sessions
from hfjax_app.server.gradio_events import GradioEvents
from hfjax_app.server.gradio_routes import GradioRoutes
from hfjax_app.server.health import Readiness, add_health
from hfjax_app.server.metrics import LineMetrics, ModelMetrics, metrics_router
from hfjax_app.server.request_log import RequestLog, log_request
from hfjax_app.service.admission import Admission
from hfjax_app.service.service import Service
from hfjax_app.service.usage import RequestUsage
from hfjax_app.studio.event_queue import FairQueue
from hfjax_app.studio.page import TITLE, build_studio
from hfjax_app.studio.page_states import PageStates
from hfjax_app.studio.theme import FAVICON, NONCE, run_first, theme

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


_ABOUT_API = "OpenAI's routes for chat and pictures, and this app's own for sentiment, in the same manner."


@dataclass(frozen=True, kw_only=True, eq=False)
class Studio:
    """The web app and its parts.

    Args:
        app: what the server runs.
        page: Gradio's app inside it.
        queue: of Gradio's events.
        admission: of all requests.
    """

    app: FastAPI
    page: App
    queue: FairQueue
    admission: Admission


def build_app(
    backends: Backends, credentials: Credentials | None = None, model_metrics: Collector | None = None
) -> Studio:
    """The studio as an ASGI app with its page at / and the state of the backends at /health.

    Args:
        backends: may still be warming up.
        credentials: who may use it; None: read from the settings.
        model_metrics: of the models and their devices; None: of this process's.
    """
    run_first()
    settings = backends.settings
    credentials = credentials or Credentials(settings)
    sessions, service = Sessions(), Service(backends)
    usage, admission = service.usage, service.admission
    mcp = mcp_app(service)
    lifespan = None if mcp is None else mcp.router.lifespan_context
    app = FastAPI(title=f"{TITLE} API", description=_ABOUT_API, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.add_middleware(
        Door, credentials=credentials, sessions=sessions, oauth_user=user_of if credentials.oauth else None
    )
    origins = [origin for origin in settings.cors_origins.split(",") if origin]
    # also without origins: it takes the place of Gradio's, which lets in all of them
    app.add_middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["GET", "POST"],
        allow_headers=["Authorization", "Content-Type", "X-Api-Key"],
        expose_headers=["Retry-After"],
    )
    app.add_middleware(RequestLog, registry=usage.registry)
    app.add_middleware(
        Edge,
        trusted=settings.forwarded_allow_ips,
        cookies=(COOKIE, OAUTH_COOKIE),
        frames=settings.frame_ancestors,
    )
    blocks, queue = build_studio(service, _log_event)
    app.include_router(api_router(service))
    add_docs(app)
    if mcp is not None:
        app.router.routes.append(Route(MCP_PATH, mcp))
    add_health(app, backends, queue)
    app.include_router(Readiness(backends, queue, admission).router())
    usage.registry.register(LineMetrics(queue, admission))
    usage.registry.register(model_metrics or ModelMetrics(backends))
    app.include_router(metrics_router(usage.registry))
    if not credentials.oauth:
        app.include_router(Login(credentials, sessions).router())
    page = mount_page(app, blocks, queue, credentials, settings.root_path)
    if credentials.oauth:
        add_space_login(page)
    return Studio(app=app, page=page, queue=queue, admission=admission)


def mount_page(
    app: FastAPI, blocks: gr.Blocks, queue: FairQueue, credentials: Credentials | None = None, root_path: str = ""
) -> App:
    """Put Gradio's page at /, behind the list of its routes, with this app's own routes for events before it."""
    asks = credentials is not None and not credentials.is_open and not credentials.oauth
    gr.mount_gradio_app(
        app,
        blocks,
        path="/",
        root_path=root_path or None,
        auth=_never if asks else None,  # Gradio shows its login page to whom it does not know
        auth_message=credentials.asks if asks and credentials else None,
        theme=theme(),
        favicon_path=str(FAVICON),
        show_error=False,
        max_file_size=HTTP_MAX_UPLOAD,
        footer_links=["api"],
        run_history=False,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        enable_monitoring=False,
    )
    [mount] = [route for route in app.routes if isinstance(route, Mount) and isinstance(route.app, App)]
    page = mount.app
    assert isinstance(page, App)
    states = page.state_holder = PageStates()
    states.set_blocks(blocks)
    queue.set_server_app(page)
    app.router.routes.remove(mount)
    app.include_router(GradioEvents(page, queue, states).router())
    app.mount("/", GradioRoutes(page, page, queue.results, states))
    return page


def _log_event(event: Event, status: int, seconds: float, usage: RequestUsage) -> None:
    log_request(f"event {event.fn.api_name}", client_of(event.request.scope).id, status, seconds, usage)


def _never(user: str, password: str) -> bool:
    """Gradio's own login is replaced (`door.py`)."""
    return False
