"""The list of routes that OpenAI's clients speak to, and of this app's own in the same manner."""

import time

from fastapi import APIRouter, FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse

from hfjax_app.api.v1.completions import Completions
from hfjax_app.api.v1.docs_page import docs_page
from hfjax_app.api.v1.errors import EnvelopeRoute
from hfjax_app.api.v1.images import Images
from hfjax_app.api.v1.others import Others
from hfjax_app.service.service import Service


def api_router(service: Service) -> APIRouter:
    """Every route of the API.

    Args:
        service: answers; its models may still be warming up.
    """
    router = APIRouter(route_class=EnvelopeRoute)
    completions, images = Completions(service), Images(service)
    others = Others(service, created=int(time.time()))
    for path, method, answer in (
        ("/v1/models", "GET", others.models),
        ("/v1/models/{name:path}", "GET", others.model),
        ("/v1/chat/completions", "POST", completions.chat),
        ("/v1/completions", "POST", completions.complete),
        ("/v1/images/generations", "POST", images.generate),
        ("/v1/images/edits", "POST", images.edit),
        ("/v1/classify", "POST", others.classify),
        ("/v1/zero_shot", "POST", others.zero_shot),
        ("/v1/explain", "POST", others.explain),
        ("/tokenize", "POST", others.tokenize),
        ("/detokenize", "POST", others.detokenize),
    ):
        router.add_api_route(path, answer, methods=[method], response_model=None)

    @router.api_route("/v1/{path:path}", methods=["GET", "POST", "DELETE", "PUT"], include_in_schema=False)
    def missing(path: str) -> None:
        raise HTTPException(404, f"/v1/{path[:80]}: this app has no such route; GET /docs lists those that it has")

    return router


def add_docs(app: FastAPI) -> None:
    """Serve /docs."""

    @app.get("/docs", include_in_schema=False)
    def docs(request: Request) -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi(), str(request.base_url).rstrip("/")))
