"""uvicorn and h11: connections that send no request are closed, and bodies in very small chunks are refused."""

import asyncio
from collections.abc import Container
from typing import TYPE_CHECKING, Any

import h11

from hfjax_app.limits import HTTP_CHUNK_BYTES, HTTP_HEADERS_S, HTTP_MAX_HEADERS, HTTP_SMALL_CHUNKS
from hfjax_app.runtime.seams import Seam, missing, part

VERSIONS = {"uvicorn": "0.54.0", "h11": "0.16.0"}
SEAMS = (
    Seam(
        name="patience with clients",
        what="uvicorn's H11Protocol, of uvicorn.protocols.http.h11_impl: its `conn`, `cycle`, `loop` and `transport`",
        without="uvicorn waits for a request's headers without a limit; nginx in front of it does not",
    ),
    Seam(
        name="small chunks",
        what="`next_event` of h11.Connection, and `chunk_start` of h11.Data",
        without="h11 takes as long for a chunk of one byte as for one of 64 KB: a megabyte of such took 12 s",
    ),
    Seam(
        name="trusted proxies",
        what="`trusted_hosts` of uvicorn's ProxyHeadersMiddleware",
        without="no proxy is believed: all clients have the proxy's address, and share its limits",
    ),
)

_PROTOCOL = "uvicorn.protocols.http.h11_impl:H11Protocol"
if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol
else:
    H11Protocol = part(_PROTOCOL, without="connections that send no request are not closed") or object


class Requests(h11.Connection):
    """h11's parser, with limits on headers and on small chunks."""

    _chunks = _bytes = 0

    def next_event(self) -> Any:
        """The next part of a request.

        Raises:
            RemoteProtocolError: also where headers are long, which h11 refuses only if they come in
                pieces, and where a body comes in very small chunks.
        """
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._bytes = 0
            if sum(len(name) + len(value) for name, value in event.headers) > HTTP_MAX_HEADERS:
                raise h11.RemoteProtocolError("headers that are too long")
        elif isinstance(event, h11.Data):
            self._chunks += event.chunk_start
            self._bytes += len(event.data)
            if self._chunks > HTTP_SMALL_CHUNKS and self._bytes < self._chunks * HTTP_CHUNK_BYTES:
                raise h11.RemoteProtocolError("a body in chunks that are too small")
        return event


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP protocol, which has no limit on the time to send a request's headers, or on chunks."""

    _waiting: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.conn = Requests(h11.SERVER)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            if self._waiting is None:
                self._expect_headers()
        elif self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # an answer was begun, after which h11 raises an error, and asyncio writes its traceback
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        super().connection_lost(exc)

    def _expect_headers(self) -> None:
        self._waiting = self.loop.call_later(HTTP_HEADERS_S, self._give_up)

    def _give_up(self) -> None:
        self._waiting = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


def protocol() -> Any:
    """What uvicorn.Config takes as `http`."""
    return TimedProtocol if hasattr(TimedProtocol, "handle_events") else "auto"  # a method of H11Protocol


def trusted_by(proxied: Any) -> Container[str]:
    """The addresses that a ProxyHeadersMiddleware believes."""
    trusted: Container[str] | None = getattr(proxied, "trusted_hosts", None)
    if trusted is None:
        missing("uvicorn.middleware.proxy_headers:ProxyHeadersMiddleware.trusted_hosts", "no proxy is believed")
    return () if trusted is None else trusted
