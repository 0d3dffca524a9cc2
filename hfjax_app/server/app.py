"""The web app, assembled: the studio's page at /, /health, and the middleware around both."""

from dataclasses import dataclass

import gradio as gr
from fastapi import FastAPI
from prometheus_client.registry import Collector
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Mount, Route

from hfjax_app.api.mcp import PATH as MCP_PATH
from hfjax_app.api.mcp import mcp_app
from hfjax_app.api.v1.routes import add_docs, api_router
from hfjax_app.backends import Backends
from hfjax_app.client import client_of
from hfjax_app.limits import HTTP_MAX_UPLOAD
from hfjax_app.runtime.seams.gradio import App, Event, add_space_login
from hfjax_app.server.credentials import Credentials
from hfjax_app.server.door import COOKIE, OAUTH_COOKIE, Door, Login, Sessions
from hfjax_app.server.gradio_events import GradioEvents
from hfjax_app.server.gradio_routes import GradioRoutes
from hfjax_app.server.health import Readiness, add_health
from hfjax_app.server.metrics import LineMetrics, ModelMetrics, metrics_router
from hfjax_app.server.middleware import Edge
from hfjax_app.server.request_log import RequestLog, log_request
from hfjax_app.server.space_login import user_of
from hfjax_app.service.admission import Admission
from hfjax_app.service.service import Service
from hfjax_app.service.usage import RequestUsage
from hfjax_app.studio.event_queue import FairQueue
from hfjax_app.studio.page import TITLE, build_studio
from hfjax_app.studio.page_states import PageStates
from hfjax_app.studio.scripts import FAVICON, run_first
from hfjax_app.studio.theme import theme

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
