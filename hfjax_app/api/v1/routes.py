"""The routes that OpenAI's clients speak to, and this app's own in the same manner: models, tokens, sentiment;
and GET /docs: what /openapi.json says, as a page without scripts.
"""

import asyncio
import html
import json
import time
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse

from hfjax_app.api.http_errors import EnvelopeRoute
from hfjax_app.api.v1.completions import Completions
from hfjax_app.api.v1.conversation import conversation_of
from hfjax_app.api.v1.images import Images
from hfjax_app.api.v1.schemas import (
    ClassifyRequest,
    DetokenizeRequest,
    ExplainRequest,
    TokenizeRequest,
    ZeroShotRequest,
)
from hfjax_app.chat.request import AnswerForm, ChatRequest
from hfjax_app.chat.text.tools import checked_tools
from hfjax_app.client import client_of
from hfjax_app.errors import NotFound, RequestRejected
from hfjax_app.limits import SENTIMENT_MAX_CHARACTERS, SENTIMENT_MAX_TEXTS
from hfjax_app.service.service import Service
from hfjax_app.validation import checked_text, quoted

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 54rem; padding: 2rem 1rem; }
h2 { border-top: 1px solid color-mix(in srgb, currentColor 20%, transparent); font-size: 1.1rem; padding-top: 1.2rem; }
pre { background: color-mix(in srgb, currentColor 7%, transparent); border-radius: 6px; overflow: auto; padding: 1em; }
table { border-collapse: collapse; width: 100%; }
td, th { padding: .25rem .8rem .25rem 0; text-align: left; vertical-align: top; }
:root { color-scheme: light dark; }
"""


def docs_page(openapi: dict[str, Any], root: str) -> str:
    """The page.

    Args:
        openapi: the app's description.
        root: the address of the app, for the examples.
    """
    parts = []
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            parts.append(_operation(openapi, path, method, operation, root))
    title = html.escape(openapi["info"]["title"])
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body><h1>{title}</h1>'
        f"<p>{html.escape(openapi['info']['description'])} "
        f'<a href="openapi.json">openapi.json</a> has the same for programs.</p>{"".join(parts)}</body></html>'
    )


def _operation(openapi: dict[str, Any], path: str, method: str, operation: dict[str, Any], root: str) -> str:
    schema, kind = _body(openapi, operation)
    rows = "".join(
        f"<tr><td><code>{html.escape(name)}</code></td><td>{html.escape(_type(openapi, field))}"
        f"{', needed' if name in schema.get('required', ()) else ''}</td>"
        f"<td>{html.escape(field.get('description', ''))}</td></tr>"
        for name, field in schema.get("properties", {}).items()
    )
    table = f"<table><tr><th>Field</th><th>Type</th><th></th></tr>{rows}</table>" if rows else ""
    example = schema.get("example")
    call = f"curl {root}{path}" if example is None else _curl(f"{root}{path}", example)
    shown = "" if kind == "multipart/form-data" else f"<pre>{html.escape(call)}</pre>"
    about = html.escape(operation.get("description", ""))
    return f"<h2><code>{method.upper()} {html.escape(path)}</code></h2><p>{about}</p>{shown}{table}"


def _curl(url: str, body: Any) -> str:
    return f"curl {url} -H 'Content-Type: application/json' -d '{json.dumps(body)}'"


def _body(openapi: dict[str, Any], operation: dict[str, Any]) -> tuple[dict[str, Any], str]:
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        return _resolved(openapi, content["schema"]), kind
    return {}, ""


def _resolved(openapi: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if (reference := schema.get("$ref")) is None:
        return schema
    found: dict[str, Any] = openapi["components"]["schemas"][reference.rpartition("/")[2]]
    return found


def _type(openapi: dict[str, Any], field: dict[str, Any]) -> str:
    if "$ref" in field:
        return str(_resolved(openapi, field).get("title", "object"))
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_type(openapi, each) for each in field["anyOf"] if each.get("type") != "null"))
    if "const" in field or "enum" in field:
        return ", ".join(json.dumps(value) for value in field.get("enum", [field.get("const")]))
    if field.get("type") == "array":
        return f"list of {_type(openapi, field.get('items', {}))}"
    return str(field.get("type", "any"))


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


class Others:
    """Answers these routes.

    Args:
        service: answers.
        created: when the app started, in seconds since 1970.
    """

    def __init__(self, service: Service, created: int):
        self._backends, self._admission, self._created = service.backends, service.admission, created
        self._sentiment = service.sentiment

    def models(self) -> dict[str, Any]:
        """Every model that answers or warms up."""
        return {"object": "list", "data": [self._described(backend) for backend in self._backends.all]}

    def model(self, name: str) -> dict[str, Any]:
        """One model."""
        for backend in self._backends.all:
            if backend.name == name:
                return self._described(backend)
        names = ", ".join(backend.name for backend in self._backends.all)
        raise NotFound(f"model {quoted(name)} is not loaded; there are: {names}")

    def _described(self, backend: Any) -> dict[str, Any]:
        about = {"id": backend.name, "object": "model", "created": self._created, "owned_by": "hfjax"}
        return about | {"kind": backend.kind, "state": backend.state, "progress": backend.progress}

    async def classify(self, body: ClassifyRequest, request: Request) -> dict[str, Any]:
        """The probability of each label for a text or for several."""
        texts = [body.input] if isinstance(body.input, str) else body.input
        if not 1 <= len(texts) <= SENTIMENT_MAX_TEXTS:
            raise RequestRejected(f"input of {len(texts)} texts: must be 1 to {SENTIMENT_MAX_TEXTS}")
        for text in texts:
            checked_text(text, "input", SENTIMENT_MAX_CHARACTERS)
        backend = self._backends.sentiment_models.find(body.model)
        judge = self._sentiment
        with self._admission.enter(client_of(request.scope), "sentiment", backend):
            if len(texts) == 1:
                predictions = [await judge.predict(texts[0], backend.name)]
            else:
                predictions = await judge.predict_all(texts, backend.name)
        results = [
            {"index": index, "label": found.top, "scores": found.scores, "cut": found.cut}
            for index, found in enumerate(predictions)
        ]
        return {"object": "list", "model": backend.name, "data": results}

    async def explain(self, body: ExplainRequest, request: Request) -> dict[str, Any]:
        """What each word contributed to a label's logit; the likeliest label's if none is given."""
        backend = self._backends.sentiment_models.find(body.model)
        checked_text(body.input, "input", SENTIMENT_MAX_CHARACTERS)
        with self._admission.enter(client_of(request.scope), "sentiment", backend):
            found = await self._sentiment.explanation(body.input, body.label, backend.name)
        words = [{"text": text, "contribution": share} for text, share in found.pieces]
        about = {"label": found.label, "logit": float(found.logit), "baseline": float(found.baseline)}
        return {"object": "explanation", "model": backend.name, **about, "words": words}

    async def zero_shot(self, body: ZeroShotRequest, request: Request) -> dict[str, Any]:
        """The probability of each of your own labels for a text, by a chat model or a sentiment model for NLI."""
        judge = self._sentiment.judge() if body.model is None else self._backends.chat_models.find(body.model)
        with self._admission.enter(client_of(request.scope), "zero-shot", judge):
            scores = await self._sentiment.label_scores(body.input, body.labels, judge)
        return {"object": "zero_shot", "model": judge.name, "scores": scores}

    async def tokenize(self, body: TokenizeRequest, request: Request) -> JSONResponse:
        """The token ids of a text, or of a conversation with its chat template."""
        if (body.prompt is None) == (body.messages is None):
            raise RequestRejected("send a prompt or messages, one of them")
        prompt, messages = body.prompt or "", body.messages
        backend = self._backends.chat_models.find(body.model)
        with self._admission.enter(client_of(request.scope), "tokens", backend):
            assistant = backend.get()
            if messages is None:
                tokens = await asyncio.to_thread(assistant.tokenize, prompt)
            else:
                fields, beginning = conversation_of(body, messages)
                form = AnswerForm(tools=checked_tools(body.tools or []), beginning=beginning)
                tokens = await asyncio.to_thread(assistant.count, ChatRequest(**fields, form=form))
        # a response, because FastAPI would look at each token
        return JSONResponse({"tokens": tokens, "count": len(tokens), "max_model_len": assistant.context})

    async def detokenize(self, body: DetokenizeRequest, request: Request) -> dict[str, Any]:
        """The text of token ids."""
        backend = self._backends.chat_models.find(body.model)
        with self._admission.enter(client_of(request.scope), "tokens", backend):
            assistant = backend.get()
            if len(body.tokens) > assistant.context:
                raise RequestRejected(f"{len(body.tokens)} tokens: at most {assistant.context}, the context")
            return {"prompt": await asyncio.to_thread(assistant.detokenize, body.tokens)}
