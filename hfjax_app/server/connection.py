"""Connections: those that send no request are closed, and those that do not read their answer are cut."""

import asyncio
import socket

from uvicorn.protocols.http.h11_impl import H11Protocol

from hfjax_app.limits import HTTP_HEADERS_S, HTTP_STALLED_S


class PatientForAWhile(H11Protocol):
    """uvicorn's HTTP protocol, which has no limit on the time to send a request's headers."""

    _waiting: asyncio.TimerHandle | None = None

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
