"""One line in the log for each request, and its count: when, what, who, how it ended, tokens and seconds.

Never a prompt, an answer, a key or a path beyond the route: a file's name may be what a visitor typed.
"""

import json
import logging
import sys
import time
from typing import Any

import prometheus_client as prometheus
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hfjax_app.api.http_errors import CUT
from hfjax_app.client import client_of
from hfjax_app.errors import where
from hfjax_app.service.usage import RequestUsage, request_usage

_requests = logging.getLogger("hfjax_app.requests")
_log = logging.getLogger(__name__)

# Not logged when they succeed: probes, files of the page, and requests whose event has a line of its own.
_QUIET = ("/live", "/ready", "/metrics", "/assets", "/static", "/theme.css", "/favicon.ico", "/gradio_api/heartbeat")
_EVENTS = ("/gradio_api/queue", "/gradio_api/call")


class RequestLog:
    """ASGI middleware: logs and counts requests, and turns an unexpected error into a 500 without a stack trace.

    Args:
        app: what answers.
        registry: gets the counts.
    """

    def __init__(self, app: ASGIApp, registry: prometheus.CollectorRegistry):
        self._app = app
        self._count = prometheus.Counter(
            "hfjax_http_requests", "HTTP requests", ["method", "route", "status"], registry=registry
        )
        self._seconds = prometheus.Histogram(
            "hfjax_http_seconds", "From a request to the end of its answer", ["route"], registry=registry
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.monotonic(), CUT

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        with request_usage() as usage:
            try:
                await self._app(scope, receive, noted)
            except Exception as error:
                _log.error("a request to %s failed: %s", route_of(scope), where(error))
                if status == CUT:
                    await JSONResponse({"detail": "something failed here"}, status_code=500)(scope, receive, noted)
            finally:
                route, seconds = route_of(scope), time.monotonic() - began
                method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "OPTIONS") else "other"
                self._count.labels(method, route, status).inc()
                self._seconds.labels(route).observe(seconds)
                if status >= 400 or not route.startswith(_QUIET + _EVENTS):
                    log_request(f"{method} {route}", client_of(scope).id, status, seconds, usage)


def log_request(route: str, client: str, status: int, seconds: float, usage: RequestUsage) -> None:
    """Write the line of a request."""
    fields: dict[str, Any] = {"route": route, "client": client, "status": status, "seconds": round(seconds, 3)}
    if usage.prompt_tokens or usage.tokens:
        fields |= {"prompt_tokens": usage.prompt_tokens, "tokens": usage.tokens}
    _requests.info("%s", " ".join(f"{key}={value}" for key, value in fields.items()), extra={"fields": fields})


def route_of(scope: Scope) -> str:
    """The route's pattern, or the first part of the path of a file; "other" for what is not there."""
    if (route := getattr(scope.get("route"), "path", None)) is not None and route != "":
        return str(route)
    parts = scope["path"].split("=")[0].split("/")
    known = {"": 2, "assets": 2, "static": 2, "theme.css": 2, "config": 2, "gradio_api": 3, "login": 2, "logout": 2}
    most = known.get(parts[1] if len(parts) > 1 else "", 0)
    pages = ("file", "upload", "upload_progress", "heartbeat", "info", "app_id", "theme.css", "reset")
    if most == 0 or (most == 3 and (len(parts) < 3 or parts[2] not in pages)):
        return "other"
    return "/".join(parts[:most]) or "/"


class _Json(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {"time": self.formatTime(record, "%Y-%m-%dT%H:%M:%SZ"), "level": record.levelname.lower()}
        found: dict[str, Any] = getattr(record, "fields", None) or {"message": record.getMessage()}
        return json.dumps(fields | found, ensure_ascii=False)


def set_up_log(form: str) -> None:
    """Send this app's log and the web server's to stderr.

    Args:
        form: "text" or "json".
    """
    formatter = _Json() if form == "json" else logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    for name in ("hfjax_app", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
    logging.getLogger("hfjax_app").setLevel(logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
