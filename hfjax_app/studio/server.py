"""The web server: the studio's page, /health, limits on what clients send, and a clean start and end."""

import errno
import gc
import os
import signal
import socket
from dataclasses import asdict
from typing import Any

import gradio as gr
import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hfjax_app.backends import Backends
from hfjax_app.errors import HfjaxError
from hfjax_app.runtime.process import prepare
from hfjax_app.settings import Settings
from hfjax_app.studio.blocks import build_studio
from hfjax_app.studio.theme import CSS, HEAD, theme

MAX_BODY = 16 << 20  # bytes of one request: a picture of the largest size as text, and a little more
MAX_UPLOAD = "10mb"  # of a file; the backends look closer
_COMPILED, _CACHE_HIT = "/jax/core/compile/backend_compile_duration", "/jax/compilation_cache/cache_hits"
LAST_WORDS_S = 2  # what open connections get to end in


def launch(backends: Backends, settings: Settings) -> None:
    """Serve the studio until SIGTERM or Ctrl-C. Takes the port first, then begins to warm up.

    Args:
        backends: not started yet.
        settings: host and port.

    Raises:
        HfjaxError: the port is taken, or the address is not one of this machine.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    listener = _listen(settings.host, settings.port)
    with listener:
        app = studio_app(backends)
        backends.start()
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        print(f"hfjax studio is at http://{host}:{settings.port}", flush=True)
        # uvicorn hands a signal on when it is done; SIGTERM would then kill us before the backends have stopped
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            config = uvicorn.Config(
                app, log_level="warning", timeout_graceful_shutdown=LAST_WORDS_S, forwarded_allow_ips="*"
            )
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:
            pass
        finally:
            backends.stop()
    if not backends.wait(0):
        os._exit(0)  # a compiler's threads can't be stopped, and abort the process when Python ends under them
    gc.freeze()  # or Python would walk all objects of torch and jax before it ends, for seconds


def studio_app(backends: Backends) -> FastAPI:
    """The studio as an ASGI app with its page at / and the state of the backends at /health."""
    events = _compiler_events(backends)
    app = FastAPI(openapi_url=None)
    app.add_middleware(BodyLimit, limit=MAX_BODY)

    @app.get("/health")
    def health() -> JSONResponse:
        state = {**_health(backends), "compilations": events.count(_COMPILED), "from_cache": events.count(_CACHE_HIT)}
        return JSONResponse(state, status_code=200 if state["status"] == "ready" else 503)

    return gr.mount_gradio_app(
        app,
        build_studio(backends),
        path="/",
        theme=theme(),
        css_paths=[CSS],
        head=HEAD,
        show_error=False,
        max_file_size=MAX_UPLOAD,
        footer_links=["api", "settings"],
        run_history=False,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        enable_monitoring=False,
    )


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise HfjaxError(f"port {port} is taken; choose another with --port or HFJAX_PORT") from None
        raise HfjaxError(f"can't listen on {host}:{port}: {error.strerror or error}") from None


def _health(backends: Backends) -> dict[str, Any]:
    states = [backend.state for backend in backends.all]
    chat = backends.chat
    return {
        "status": "failed" if "failed" in states else "ready" if set(states) == {"ready"} else "warming up",
        "device": backends.device(),
        "backends": {
            backend.name: {
                "model": backend.model,
                "state": backend.state,
                "programs": len(backend.reports),
                "progress": backend.progress,
                "error": backend.error,
            }
            for backend in backends.all
        },
        "chat_engine": asdict(chat.get().engine.stats()) if chat.state == "ready" else None,
    }


def _compiler_events(backends: Backends) -> list[str]:
    """A list that grows from now on: _COMPILED for each program that jax asks for, _CACHE_HIT if its cache has it."""
    prepare(backends.settings.cache_dir)
    import jax  # after prepare()

    events: list[str] = []

    def listen(event: str, *_: Any, **__: Any) -> None:
        if event in (_COMPILED, _CACHE_HIT):
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    jax.monitoring.register_event_listener(listen)
    return events


class BodyLimit:
    """Refuses requests whose body is longer than `limit` bytes with 413, also when they don't say so beforehand."""

    def __init__(self, app: ASGIApp, limit: int):
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > self._limit:
            await self._refuse(scope, receive, send)
            return
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._limit:
                return {"type": "http.disconnect"}
            return message

        await self._app(scope, counted, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = JSONResponse({"detail": f"a request may have at most {self._limit:,} bytes"}, status_code=413)
        await response(scope, receive, send)
