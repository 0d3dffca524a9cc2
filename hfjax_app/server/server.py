"""The web server: a clean start and end. The models start to warm up before Gradio is imported."""

import asyncio
import errno
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import anyio.to_thread
import uvicorn

from hfjax_app.backends import Backends
from hfjax_app.backends.registry import Watch
from hfjax_app.errors import HfjaxError, ModelUnavailable
from hfjax_app.limits import HTTP_STALLED_S, HTTP_THREADS
from hfjax_app.runtime.seams.server import protocol
from hfjax_app.server.credentials import Credentials, check_space
from hfjax_app.server.request_log import set_up_log
from hfjax_app.settings import Settings

if TYPE_CHECKING:
    from hfjax_app.server.app import Studio

SHUTDOWN_S = 2  # the time that open connections have to end
TOLD_S = 2  # the time that clients have to read the error that ended their requests


def launch(backends: Backends, settings: Settings) -> None:
    """Serve the studio until SIGTERM or Ctrl-C. Opens the port first, then starts to warm up.

    Args:
        backends: not started yet.
        settings: host and port.

    Raises:
        HfjaxError: the port is taken, or the address does not belong to this machine.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    set_up_log(settings.log)
    credentials = Credentials(settings)
    if credentials.oauth:
        check_space()
    with _listen(settings.host, settings.port) as listener:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _end)
        backends.start()
        try:
            _serve(backends, credentials, settings, listener)
        finally:
            backends.stop()
    if backends.loads.is_busy or not backends.wait_for_all_models(0):
        os._exit(0)  # a compiler's threads can't be stopped, and abort the process when Python shuts down


def _serve(backends: Backends, credentials: Credentials, settings: Settings, listener: socket.socket) -> None:
    from hfjax_app.server.app import build_app  # Gradio takes seconds, and the first model is loaded meanwhile

    studio = build_app(backends, credentials)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    print(f"hfjax studio is at http://{host}:{settings.port}", flush=True)
    if (key := backends.operator.one_time_key) is not None:
        print(f"operator's key of this run, for loading other models: {key}", flush=True)
    if credentials.is_open and not settings.is_local:
        unset = "HFJAX_API_KEYS and HFJAX_AUTH are not set"
        print(f"warning: everybody who reaches this port may use the studio: {unset}", file=sys.stderr, flush=True)
    config = uvicorn.Config(
        studio.app,
        http=protocol(),
        log_config=None,
        timeout_graceful_shutdown=SHUTDOWN_S,
        proxy_headers=False,  # see app.Edge
    )
    server = _Server(config, backends, studio, settings.grace)
    given_up: list[str] = []

    def give_up(reason: str) -> None:
        given_up.append(reason)
        server.drain()

    watch = Watch(backends, give_up).start()
    try:
        server.run(sockets=[listener])
    finally:
        watch.stop()
    if given_up:
        raise ModelUnavailable(given_up[0])


class _Server(uvicorn.Server):
    """Drains on the first signal, and ends at once on the second.

    While it drains, new requests are refused and running ones have `grace` seconds to end. Then the backends are
    stopped, which ends all streams with an error, and last Gradio's heartbeats, which would end only when their pages
    are closed. A page that receives the error works again with the next server. A page whose connection is cut waits
    until it is reloaded.
    """

    ending = False

    def __init__(self, config: uvicorn.Config, backends: Backends, studio: "Studio", grace: int):
        super().__init__(config)
        self._backends, self._studio, self._grace = backends, studio, grace

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if _Server.ending:
            os._exit(128 + sig)
        self.drain()

    def drain(self) -> None:
        """Begin to end the server; returns at once."""
        _Server.ending = True
        self._studio.admission.drain()
        threading.Thread(target=self._drained, name="draining", daemon=True).start()

    def _drained(self) -> None:
        studio, queue = self._studio, self._studio.queue
        _wait_while(lambda: studio.admission.inside > 0, self._grace)
        self._backends.stop()
        _wait_while(lambda: studio.admission.inside > 0 or queue.is_read_from, TOLD_S)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        anyio.to_thread.current_default_thread_limiter().total_tokens = HTTP_THREADS
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().call_later(SHUTDOWN_S / 2, self._studio.page.stop_event.set)
        await super().shutdown(sockets)


def _wait_while(holds: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while holds() and time.monotonic() < deadline:
        time.sleep(0.05)


def _end(number: int, frame: FrameType | None) -> None:
    """Handles signals outside of uvicorn's run. After its run, uvicorn raises them again; the process then ends anyway.

    It exits and does not raise an exception, because Python ignores exceptions in some places, such as a finaliser.
    """
    if not _Server.ending:
        os._exit(0)


def _listen(host: str, port: int) -> socket.socket:
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise HfjaxError(f"port {port} is taken; choose another with --port or HFJAX_PORT") from None
        raise HfjaxError(f"can't listen on {host}:{port}: {error.strerror or error}") from None
    cut_stalled_readers(listener)
    return listener


def cut_stalled_readers(listener: socket.socket) -> None:
    """Let the kernel cut connections whose peer reads nothing for HTTP_STALLED_S; accepted sockets inherit it."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, HTTP_STALLED_S * 1000)
