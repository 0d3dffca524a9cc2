"""/ready: whether each model answers. /health: the state of everything. /live is answered in `app.py`."""

import asyncio
import weakref
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.responses import JSONResponse

from hfjax_app.backends import Backend, Backends
from hfjax_app.backends.loaders import FIRST_ANSWERS
from hfjax_app.errors import HfjaxError, NotFound, where, without_folders
from hfjax_app.limits import RETRY_AFTER_S
from hfjax_app.service.admission import Admission
from hfjax_app.studio.event_queue import FairQueue

PROBE_S = 30.0  # that a request to /ready waits for the first answer of a model


class Readiness:
    """Says why a kind of model is not ready. A model is ready after it has answered once, and while nothing stops it.

    Args:
        backends: the models.
        queue: of Gradio's events.
        admission: of all requests.
    """

    def __init__(self, backends: Backends, queue: FairQueue, admission: Admission):
        self._backends, self._queue, self._admission = backends, queue, admission
        # kind and name of a model -> what was asked, its answer
        self._probes: dict[tuple[str, str], tuple[object, asyncio.Task[str | None]]] = {}

    def router(self) -> APIRouter:
        router = APIRouter()
        for path, answer in (("/ready", self.all), ("/ready/{kind}", self.one)):
            router.add_api_route(path, answer, methods=["GET", "HEAD"], response_model=None)
        return router

    async def all(self) -> JSONResponse:
        """Whether the first model of every kind answers."""
        firsts = [models.first for models in self._backends.kinds]
        reasons = await asyncio.gather(*map(self.reason, firsts))
        return _answer(
            {first.kind: reason for first, reason in zip(firsts, reasons, strict=True) if reason is not None}
        )

    async def one(self, kind: str, model: str | None = None) -> JSONResponse:
        """Whether a model of one kind answers: the first one, or the one that the query names."""
        if kind not in FIRST_ANSWERS:
            detail = f"there are /ready/{', /ready/'.join(FIRST_ANSWERS)}"
            return JSONResponse({"detail": detail}, status_code=404)
        [models] = [models for models in self._backends.kinds if models.kind == kind]
        try:
            backend = models.find(model)
        except NotFound as error:
            return JSONResponse({"detail": str(error)}, status_code=404)
        reason = await self.reason(backend)
        return _answer({} if reason is None else {kind: reason})

    async def reason(self, backend: Backend[Any]) -> str | None:
        """Why this model does not answer; None where it does."""
        if self._admission.is_draining:
            return "the server is stopping"
        if not self._queue.is_running:
            return "the queue of requests is not running"
        try:
            served = backend.get()
        except HfjaxError as error:
            return without_folders(str(error))
        model, key = (backend.kind, backend.name), (weakref.ref(served), backend.restarts)
        if model not in self._probes or self._probes[model][0] != key:
            self._probes[model] = key, asyncio.create_task(self._probe(backend.kind, served))
        try:
            reason = await asyncio.wait_for(asyncio.shield(self._probes[model][1]), PROBE_S)
        except TimeoutError:
            return "its first answer is still being made"
        if reason is not None and self._probes.get(model, (None,))[0] == key:
            del self._probes[model]  # asked again next time
        return reason

    @staticmethod
    async def _probe(kind: str, served: Any) -> str | None:
        try:
            await asyncio.to_thread(FIRST_ANSWERS[kind], served)
        except Exception as error:
            return f"its first answer failed: {where(error)}"
        return None


def _answer(reasons: dict[str, str]) -> JSONResponse:
    if not reasons:
        return JSONResponse({"status": "ready"})
    body = {"status": "not ready", "reasons": reasons}
    return JSONResponse(body, status_code=503, headers={"Retry-After": str(RETRY_AFTER_S)})


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
