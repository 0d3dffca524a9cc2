"""Connections: those that send no request are closed, and those that do not read their answer are cut.

Bodies in very small chunks are refused.
"""

import asyncio
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from hfjax_app.limits import (
    HTTP_CHUNK_BYTES,
    HTTP_HEADERS_S,
    HTTP_MAX_HEADERS,
    HTTP_SMALL_CHUNKS,
    HTTP_STALLED_S,
)


class Requests(h11.Connection):
    """h11's parser, which takes as long for a chunk of one byte as for one of 64 KB: a megabyte of such took 12 s."""

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


class PatientForAWhile(H11Protocol):
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


def cut_stalled_readers(listener: socket.socket) -> None:
    """Let the kernel cut connections whose peer reads nothing for HTTP_STALLED_S; accepted sockets inherit it."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, HTTP_STALLED_S * 1000)
