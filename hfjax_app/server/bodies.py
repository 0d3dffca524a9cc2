"""Bounds the bodies of requests: their bytes, the time that they may take, and the parts of JSON and forms."""

import asyncio
import re
import time
from contextlib import suppress

from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hfjax_app.limits import (
    HTTP_BODY_BYTES_PER_S,
    HTTP_BODY_S,
    HTTP_MAX_FORM_PARTS,
    HTTP_MAX_JSON_PARTS,
    HTTP_MAX_LOGIN,
)

_JSON_PARTS, _FORM_PARTS = (b",", b"[", b"{"), (b"\r\n--",)
_CHARSET = re.compile(rb"charset *= *\"?utf-?8\"?(?=[; ]|$)")


class _Refused(ClientDisconnect):
    """The body is cut here; its reader takes that for a client that has left."""

    def __init__(self, status: int, detail: str):
        super().__init__()
        self.status, self.detail = status, detail


class Bodies:
    """Refuses bodies of more than `limit` bytes (413), also undeclared ones, and those that come slowly (408).

    And JSON of too many parts (413): the event loop reads it in one go, and each part may become an error of its own.
    Parts are counted also inside texts, because that needs no reading. Forms are read by Python, byte by byte where
    they have many parts; and in the charset that they name: one megabyte of "punycode" takes half a minute (415).
    """

    def __init__(self, app: ASGIApp, limit: int):
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        kinds = [value.lower() for name, value in scope["headers"] if name == b"content-type"]
        kind = kinds[0] if kinds else b""
        limit = min(self._limit, HTTP_MAX_LOGIN) if b"x-www-form-urlencoded" in kind else self._limit
        marks = _JSON_PARTS if b"json" in kind else _FORM_PARTS if b"multipart" in kind else ()
        if (error := self._unreadable(kinds) or self._undeclared(scope, limit)) is not None:
            await self._refuse(error, scope, receive, send)
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
            if received > limit:
                raise refuse(self._too_long(f"more than {limit:,} bytes", limit))
            return message

        async def bounded() -> Message:
            nonlocal parts
            if is_complete:
                return await receive()
            message = await piece()
            parts += sum(map(message.get("body", b"").count, marks))
            if (reason := _too_many(parts, marks)) is not None:
                while not is_complete:  # a client that still sends would not see the answer
                    await piece()
                raise refuse(_Refused(413, reason))
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

    @staticmethod
    def _unreadable(kinds: list[bytes]) -> _Refused | None:
        if len(kinds) > 1:  # one reader would take the first, the next one the last
            return _Refused(400, "send one Content-Type")
        if kinds and b"multipart" in kinds[0] and kinds[0].count(b"charset") != len(_CHARSET.findall(kinds[0])):
            return _Refused(415, "the charset of a form must be UTF-8")
        return None

    def _undeclared(self, scope: Scope, limit: int) -> _Refused | None:
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) <= limit:
            return None
        given = f"{int(declared):,} bytes" if declared.isdigit() and len(declared) < 20 else "unknown length"
        return self._too_long(given, limit)

    @staticmethod
    def _too_long(given: str, limit: int) -> _Refused:
        return _Refused(413, f"request of {given}: at most {limit:,} bytes; send a smaller file or picture")

    @staticmethod
    async def _refuse(error: _Refused, scope: Scope, receive: Receive, send: Send) -> None:
        """The connection is closed, because the rest of the body is not read."""
        answer = JSONResponse({"detail": error.detail}, status_code=error.status, headers={"Connection": "close"})
        await answer(scope, receive, send)


def _too_many(parts: int, marks: tuple[bytes, ...]) -> str | None:
    """Why a body with so many parts is refused; None: it is not."""
    if marks is _JSON_PARTS and parts > HTTP_MAX_JSON_PARTS:
        return f"JSON with over {HTTP_MAX_JSON_PARTS:,} commas and brackets: send fewer values, or a table as a file"
    if marks is _FORM_PARTS and parts > HTTP_MAX_FORM_PARTS:
        return f"a form with over {HTTP_MAX_FORM_PARTS:,} lines that begin with two dashes: send fewer parts"
    return None
