"""The web server: a clean start and end. The models start to warm up before Gradio is imported."""

import asyncio
import errno
import importlib
import os
import signal
import socket
import threading
from types import FrameType

import uvicorn

from hfjax_app.backends import Backends
from hfjax_app.errors import HfjaxError
from hfjax_app.server.connection import PatientForAWhile, cut_stalled_readers
from hfjax_app.settings import Settings

SHUTDOWN_S = 2  # the time that open connections have to end


def launch(backends: Backends, settings: Settings) -> None:
    """Serve the studio until SIGTERM or Ctrl-C. Opens the port first, then starts to warm up.

    Args:
        backends: not started yet.
        settings: host and port.

    Raises:
        HfjaxError: the port is taken, or the address does not belong to this machine.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    with _listen(settings.host, settings.port) as listener:
        for name in ("chat", "sentiment", "images"):  # before two threads import the same modules
            importlib.import_module(f"hfjax_app.{name}")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _end)
        backends.start()
        try:
            _serve(backends, settings, listener)
        finally:
            backends.stop()
    if not backends.wait(0):
        os._exit(0)  # a compiler's threads can't be stopped, and abort the process when Python shuts down


def _serve(backends: Backends, settings: Settings, listener: socket.socket) -> None:
    from hfjax_app.server.app import build_app  # Gradio takes seconds, and the first model is loaded meanwhile

    studio = build_app(backends)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    print(f"hfjax studio is at http://{host}:{settings.port}", flush=True)
    config = uvicorn.Config(
        studio.app,
        http=PatientForAWhile,
        log_level="warning",
        timeout_graceful_shutdown=SHUTDOWN_S,
        forwarded_allow_ips="*",
    )
    _Server(config, backends, studio.page.stop_event).run(sockets=[listener])


class _Server(uvicorn.Server):
    """On shutdown, stops the backends, which ends all streams with an error, and then Gradio's heartbeats.

    A page that receives the error works again with the next server. A page whose connection is cut waits until it is
    reloaded. Heartbeats would otherwise end only when their pages are closed.
    """

    ending = False

    def __init__(self, config: uvicorn.Config, backends: Backends, heartbeats_end: asyncio.Event):
        super().__init__(config)
        self._backends, self._heartbeats_end = backends, heartbeats_end

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not _Server.ending:
            _Server.ending = True
            threading.Thread(target=self._backends.stop, name="ending", daemon=True).start()
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().call_later(SHUTDOWN_S / 2, self._heartbeats_end.set)
        await super().shutdown(sockets)


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
