"""Bounds the bodies of requests: their bytes, the time that they may take, and what is in JSON."""

import asyncio
import time
from contextlib import suppress

from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hfjax_app.limits import HTTP_BODY_BYTES_PER_S, HTTP_BODY_S, HTTP_MAX_JSON_PARTS

_JSON_PARTS = (b",", b"[", b"{")
_FEWER = "send fewer values, or a table as a file"


class _Refused(ClientDisconnect):
    """The body is cut here; its reader takes that for a client that has left."""

    def __init__(self, status: int, detail: str):
        super().__init__()
        self.status, self.detail = status, detail


class Bodies:
    """Refuses bodies of more than `limit` bytes (413), also undeclared ones, and those that come slowly (408).

    And JSON of too many parts (413): the event loop reads it in one go, and each part may become an error of its own.
    Parts are counted also inside texts, because that needs no reading.
    """

    def __init__(self, app: ASGIApp, limit: int):
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        declared = headers.get(b"content-length", b"0")
        is_json = b"json" in headers.get(b"content-type", b"").lower()
        if not declared.isdigit() or int(declared) > self._limit:
            given = f"{int(declared):,} bytes" if declared.isdigit() and len(declared) < 20 else "unknown length"
            await self._refuse(self._too_long(given), scope, receive, send)
            return
        received, parts, is_complete, has_answered = 0, 0, False, False
        refused: _Refused | None = None  # kept here: FastAPI answers 400 to what happens while it reads a body
        began = time.monotonic()

        def refuse(error: _Refused) -> _Refused:
            nonlocal refused
            refused = error
            return error

        async def piece() -> Message:
            nonlocal received, is_complete
            try:
                async with asyncio.timeout(began + HTTP_BODY_S + received / HTTP_BODY_BYTES_PER_S - time.monotonic()):
                    message = await receive()
            except TimeoutError:
                late = f"the body came too slowly: {received:,} bytes in {HTTP_BODY_S} s"
                raise refuse(_Refused(408, late)) from None
            received += len(message.get("body", b""))
            is_complete = not message.get("more_body", False)
            if received > self._limit:
                raise refuse(self._too_long(f"more than {self._limit:,} bytes"))
            return message

        async def bounded() -> Message:
            nonlocal parts
            if is_complete:
                return await receive()
            message = await piece()
            if is_json:
                parts += sum(map(message.get("body", b"").count, _JSON_PARTS))
            if parts > HTTP_MAX_JSON_PARTS:
                while not is_complete:  # a client that still sends would not see the answer
                    await piece()
                raise refuse(_Refused(413, f"JSON with over {HTTP_MAX_JSON_PARTS:,} commas and brackets: {_FEWER}"))
            return message

        async def noted(message: Message) -> None:
            nonlocal has_answered
            if refused is not None and not has_answered:
                return
            has_answered = True
            await send(message)

        with suppress(ClientDisconnect):
            await self._app(scope, bounded, noted)
        if refused is not None and not has_answered:
            await self._refuse(refused, scope, receive, send)

    def _too_long(self, given: str) -> _Refused:
        return _Refused(413, f"request of {given}: at most {self._limit:,} bytes; send a smaller file or picture")

    @staticmethod
    async def _refuse(error: _Refused, scope: Scope, receive: Receive, send: Send) -> None:
        """The connection is closed, because the rest of the body is not read."""
        answer = JSONResponse({"detail": error.detail}, status_code=error.status, headers={"Connection": "close"})
        await answer(scope, receive, send)
