"""The /health endpoint: the state of all models, for load balancers and for operators who watch a start."""

from dataclasses import asdict
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from hfjax_app.backends import Backend, Backends
from hfjax_app.studio.event_queue import FairQueue


def add_health(app: FastAPI, backends: Backends, queue: FairQueue) -> None:
    """Serve /health: status 200 when the first model of each kind is ready, 503 before that or when one has failed."""

    @app.api_route("/health", methods=["GET", "HEAD"])
    def health() -> JSONResponse:
        state = _health(backends, queue)
        return JSONResponse(state, status_code=200 if state["status"] == "ready" else 503)


def _health(backends: Backends, queue: FairQueue) -> dict[str, Any]:
    firsts = [models.first for models in backends.kinds]
    states = [backend.state for backend in firsts]
    broken = "failed" in states or not queue.is_running
    return {
        "status": "failed" if broken else "ready" if set(states) == {"ready"} else "warming up",
        "queue": "running" if queue.is_running else "stopped",
        "device": backends.device(),
        "backends": {backend.kind: _described(backend) for backend in firsts},
        "models": [{"kind": backend.kind} | _described(backend) for backend in backends.all],
        "chat_engine": _engine(backends.chat),
        "compilations": backends.compiler.compilations,
        "from_cache": backends.compiler.from_cache,
    }


def _described(backend: Backend[Any]) -> dict[str, Any]:
    return {
        "model": backend.name,
        "state": backend.state,
        "programs": len(backend.reports),
        "programs_expected": backend.expected or None,
        "seconds_left": None if backend.seconds_left is None else round(backend.seconds_left, 1),
        "progress": backend.progress,
        "error": backend.error,
    }


def _engine(chat: Backend[Any]) -> dict[str, Any] | None:
    return asdict(chat.get().stats()) if chat.state == "ready" else None
