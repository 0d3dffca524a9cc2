"""The door: says who sends a request, and lets in who may, with a body that may be. Logins are kept in memory.

Bodies are bounded in their bytes, the time that they may take, and the parts of JSON and forms.
"""

import asyncio
import ipaddress
import os
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hfjax_app.api.http_errors import envelope, refusals_as_http
from hfjax_app.attempts import Attempts
from hfjax_app.client import SCOPE_KEY, Client, sent_by
from hfjax_app.limits import (
    HTTP_BODY_BYTES_PER_S,
    HTTP_BODY_S,
    HTTP_MAX_BODY,
    HTTP_MAX_FORM_PARTS,
    HTTP_MAX_JSON_PARTS,
    HTTP_MAX_LOGIN,
    LOGIN_KEPT_S,
    LOGINS,
)
from hfjax_app.server.credentials import Credentials

COOKIE = "hfjax-session"
OAUTH_COOKIE = "session"  # of a Space's login
# For everybody: health, and what the login page needs. Gradio serves the login page at / to who is not logged in.
_OPEN = (
    "/live",
    "/ready",
    "/login",
    "/logout",
    "/theme.css",
    "/gradio_api/theme.css",
    "/favicon.ico",
    "/robots.txt",
    "/",
)
_OPEN_FOLDERS = ("/ready/", "/assets/", "/static/", "/login/", "/gradio_api/theme.css")

OAuthUser = Callable[[str], str | None]  # the value of a Space's session cookie -> the user's name


class Sessions:
    """Login sessions: random tokens in a cookie, each of one client for some time."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, tuple[Client, float]] = OrderedDict()

    def begin(self, client: Client) -> str:
        while len(self._clients) >= LOGINS:
            self._clients.popitem(last=False)
        token = secrets.token_urlsafe(32)
        self._clients[token] = client, time.monotonic() + LOGIN_KEPT_S
        return token

    def client(self, token: str) -> Client | None:
        client, ends = self._clients.get(token, (None, 0.0))
        return client if time.monotonic() < ends else None

    def end(self, token: str) -> None:
        self._clients.pop(token, None)


class Door:
    """ASGI middleware: puts the client into the scope, and answers 401 to strangers where the door is closed.

    Args:
        app: what is behind the door.
        credentials: who may.
        sessions: of those who have logged in.
        oauth_user: reads the session cookie of a Space's login; None: there is none.
    """

    def __init__(self, app: ASGIApp, credentials: Credentials, sessions: Sessions, oauth_user: OAuthUser | None = None):
        self._app, self._credentials = Bodies(app, limit=HTTP_MAX_BODY), credentials
        self._sessions, self._oauth_user = sessions, oauth_user

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        known = self._known(scope)
        client = scope[SCOPE_KEY] = known or Client(id=f"address:{_network(scope)}")
        if known is None and not self._credentials.is_open and not _is_open(path):
            detail = "who are you? Send Authorization: Bearer KEY, or log in"
            body = envelope(detail, 401) if path.startswith("/v1/") else {"detail": detail}
            answer = JSONResponse(body, status_code=401, headers={"WWW-Authenticate": "Bearer"})
            await answer(scope, receive, send)
            return
        if known is None and self._oauth_user is not None and path == "/":
            await RedirectResponse(f"{scope.get('root_path', '')}/login/huggingface")(scope, receive, send)
            return
        with sent_by(client):
            await self._app(scope, receive, send)

    def _known(self, scope: Scope) -> Client | None:
        headers = Headers(scope=scope)
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._credentials.of_key(key.strip())
        if "x-api-key" in headers:
            return self._credentials.of_key(headers["x-api-key"])
        cookies = cookie_parser(headers.get("cookie", ""))
        if (token := cookies.get(COOKIE)) is not None:
            return self._sessions.client(token)
        if self._oauth_user is not None and (user := self._oauth_user(cookies.get(OAUTH_COOKIE, ""))):
            return Client(id=f"user:{user}", is_known=True)
        return None


class Login:
    """POST /login and GET /logout, in place of Gradio's, which would believe the typed name of who shows a key."""

    def __init__(self, credentials: Credentials, sessions: Sessions):
        self._credentials, self._sessions = credentials, sessions
        self._attempts = Attempts("passwords")

    def router(self) -> APIRouter:
        router = APIRouter()
        for path in ("/login", "/login/"):
            router.add_api_route(path, self.login, methods=["POST"], include_in_schema=False, response_model=None)
        router.add_api_route("/logout", self.logout, methods=["GET"], include_in_schema=False, response_model=None)
        return router

    async def login(self, request: Request) -> Response:
        form = await request.form(max_files=0, max_fields=10, max_part_size=4_096)
        user, password = form.get("username"), form.get("password")
        if not isinstance(user, str) or not isinstance(password, str):
            raise HTTPException(422, "username and password are missing")
        with refusals_as_http():
            forgive = self._attempts.begin(_network(request.scope))
        client = await self._credentials.of_login(user.strip(), password)
        if client is None:
            raise HTTPException(400, "Incorrect credentials.")
        forgive()
        answer = JSONResponse({"success": True})
        in_space = "SPACE_ID" in os.environ  # whose page is a frame of another site
        answer.set_cookie(
            COOKIE,
            self._sessions.begin(client),
            max_age=LOGIN_KEPT_S,
            httponly=True,
            secure=in_space or request.url.scheme == "https",
            samesite="none" if in_space else "lax",
        )
        return answer

    async def logout(self, request: Request) -> Response:
        self._sessions.end(request.cookies.get(COOKIE, ""))
        answer = RedirectResponse("./", status_code=302)
        answer.delete_cookie(COOKIE)
        return answer


def _is_open(path: str) -> bool:
    return path in _OPEN or path.startswith(_OPEN_FOLDERS)


def _network(scope: Scope) -> str:
    """The peer's address; of IPv6 the network of 64 bits, within which a household changes its addresses."""
    host = (scope.get("client") or ("unknown", 0))[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return str(host)
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped or ipaddress.ip_network((int(address) >> 64 << 64, 64)).network_address)
    return str(address)


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
