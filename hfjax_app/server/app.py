"""The web app, assembled: the studio's page at /, /health, and the middleware around both."""

from dataclasses import dataclass

import gradio as gr
from fastapi import FastAPI
from gradio.routes import App
from starlette.routing import Mount

from hfjax_app.api.admission import Admission
from hfjax_app.backends import Backends
from hfjax_app.limits import HTTP_MAX_BODY, HTTP_MAX_UPLOAD
from hfjax_app.server.bodies import Bodies
from hfjax_app.server.gradio_events import GradioEvents
from hfjax_app.server.gradio_routes import GradioRoutes
from hfjax_app.server.health import add_health
from hfjax_app.server.middleware import ContentPolicy
from hfjax_app.studio.event_queue import FairQueue
from hfjax_app.studio.page import build_studio
from hfjax_app.studio.page_states import PageStates
from hfjax_app.studio.scripts import run_first
from hfjax_app.studio.theme import CSS, HEAD, theme


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


def build_app(backends: Backends) -> Studio:
    """The studio as an ASGI app with its page at / and the state of the backends at /health."""
    run_first()
    app = FastAPI(openapi_url=None)
    app.add_middleware(Bodies, limit=HTTP_MAX_BODY)
    app.add_middleware(ContentPolicy)
    admission = Admission(backends, backends.settings.client_requests)
    blocks, queue = build_studio(backends, admission)
    add_health(app, backends, queue)
    page = mount_page(app, blocks, queue)
    return Studio(app=app, page=page, queue=queue, admission=admission)


def mount_page(app: FastAPI, blocks: gr.Blocks, queue: FairQueue) -> App:
    """Put Gradio's page at /, behind the list of its routes, with this app's own routes for events before it."""
    gr.mount_gradio_app(
        app,
        blocks,
        path="/",
        theme=theme(),
        css_paths=[CSS],
        head=HEAD,
        show_error=False,
        max_file_size=HTTP_MAX_UPLOAD,
        footer_links=["api", "settings"],
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
    app.mount("/", GradioRoutes(page, queue.results))
    return page
