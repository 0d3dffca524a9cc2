"""The web server: a clean start and end. Gradio is imported only when the models have begun to warm up."""

import asyncio
import errno
import importlib
import os
import signal
import socket
import threading
from types import FrameType

import uvicorn
from starlette.routing import Mount

from hfjax_app.backends import Backends
from hfjax_app.errors import HfjaxError
from hfjax_app.settings import Settings

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
    with _listen(settings.host, settings.port) as listener:
        for name in ("chat", "sentiment", "images"):  # before there are two threads that import the same modules
            importlib.import_module(f"hfjax_app.{name}")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _end)
        backends.start()
        try:
            _serve(backends, settings, listener)
        finally:
            backends.stop()
    if not backends.wait(0):
        os._exit(0)  # a compiler's threads can't be stopped, and abort the process when Python ends under them


def _serve(backends: Backends, settings: Settings, listener: socket.socket) -> None:
    from hfjax_app.server.app import studio_app  # Gradio: seconds, in which the first model is loaded

    app = studio_app(backends)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    print(f"hfjax studio is at http://{host}:{settings.port}", flush=True)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=LAST_WORDS_S, forwarded_allow_ips="*")
    [page] = [route.app for route in app.routes if isinstance(route, Mount)]
    _Server(config, backends, page.stop_event).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Ends streams by their backends: a page that is told so goes on with the next server, a page whose stream is cut
    off waits for it until it is reloaded. Then Gradio's heartbeats, which end by themselves only with their page."""

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
        asyncio.get_running_loop().call_later(LAST_WORDS_S / 2, self._heartbeats_end.set)
        await super().shutdown(sockets)


def _end(number: int, frame: FrameType | None) -> None:
    """A signal that uvicorn has not taken. It hands them on when it is done, and then the rest ends by itself.

    Before that, an exception would be lost wherever Python can raise none, such as in a finaliser.
    """
    if not _Server.ending:
        os._exit(0)


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise HfjaxError(f"port {port} is taken; choose another with --port or HFJAX_PORT") from None
        raise HfjaxError(f"can't listen on {host}:{port}: {error.strerror or error}") from None
