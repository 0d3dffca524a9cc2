"""The web app, assembled: the studio's page at /, /health, and the middleware around both."""

import gradio as gr
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from hfjax_app.backends import Backends
from hfjax_app.limits import HTTP_MAX_BODY, HTTP_MAX_UPLOAD
from hfjax_app.server.health import add_health
from hfjax_app.server.middleware import BodyLimit, ContentPolicy
from hfjax_app.studio.page import build_studio
from hfjax_app.studio.scripts import run_first
from hfjax_app.studio.theme import CSS, HEAD, theme


def studio_app(backends: Backends) -> FastAPI:
    """The studio as an ASGI app with its page at / and the state of the backends at /health."""
    run_first()
    app = FastAPI(openapi_url=None)
    app.add_middleware(BodyLimit, limit=HTTP_MAX_BODY)
    app.add_middleware(ContentPolicy)

    @app.get("/gradio_api/deep_link")
    def no_links() -> JSONResponse:
        """Replaces Gradio's route, which writes a session's values to files that are never deleted."""
        return JSONResponse({"detail": "this studio makes no links to a page's values"}, status_code=404)

    add_health(app, backends)
    mounted: FastAPI = gr.mount_gradio_app(
        app,
        build_studio(backends),
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
    return mounted
