"""The routes of Gradio that the studio uses. All others answer 404, also those that a later version of Gradio adds.

Events come in through `gradio_events.py`, whose routes stand before Gradio's. Excluded are among others the routes for
development (dev/reload, vibe-edit), server-side functions of components, recordings, monitoring, the proxy to Spaces,
run history and links to a page's values.
"""

import logging
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fastapi.responses import JSONResponse
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hfjax_app.api.http_errors import as_http
from hfjax_app.client import client_of
from hfjax_app.errors import Overloaded, where
from hfjax_app.limits import HTTP_MAX_BODY, RETRY_AFTER_S, UPLOAD_LEAST, UPLOADS_BYTES, UPLOADS_TOTAL_BYTES
from hfjax_app.runtime.seams.gradio import App, known_user
from hfjax_app.studio.event_queue import WaitingResults
from hfjax_app.studio.page import FILES_KEPT_S
from hfjax_app.studio.page_states import PageStates


class Uploads:
    """Counts the bytes of uploads. For one event loop.

    Args:
        kept_s: how long files stay.
        now: a clock in seconds.
    """

    def __init__(self, kept_s: float, now: Callable[[], float] = time.monotonic):
        self._kept_s, self._now = kept_s, now
        self._kept: deque[tuple[float, str, int]] = deque()  # when, whose, and bytes; the oldest first
        self._of_clients: Counter[str] = Counter()  # kept bytes, and those that are coming

    @contextmanager
    def counted(self, client: str, declared: bytes, receive: Receive) -> Iterator[Receive]:
        """Count an upload: while the block runs its declared length, afterwards the bytes that came.

        Args:
            client: its id.
            declared: the Content-Length; without one it counts as the longest that is read.
            receive: of the request.

        Returns:
            What reads the request.

        Raises:
            Overloaded: the client, or all of them, have uploaded so much that is still kept.
        """
        self._forget_old()
        size = int(declared) if declared.isdigit() and len(declared) < 20 else HTTP_MAX_BODY
        size = max(size, UPLOAD_LEAST)
        for used, most, whose, owners in (
            (self._of_clients[client], UPLOADS_BYTES, "your", {client}),
            (self._of_clients.total(), UPLOADS_TOTAL_BYTES, "all visitors'", self._of_clients.keys()),
        ):
            if used + size > most:
                oldest = next((at for at, owner, _ in self._kept if owner in owners), None)
                left = RETRY_AFTER_S if oldest is None else int(oldest + self._kept_s - self._now()) + 1
                raise Overloaded(f"{whose} uploads have {most >> 20:,} MiB already: try again later", left)
        self._add(client, size)
        received = 0

        async def counting() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        try:
            yield counting
        finally:
            kept = max(received, UPLOAD_LEAST) if received else 0
            self._add(client, kept - size)
            if kept:
                self._kept.append((self._now(), client, kept))

    def _add(self, client: str, size: int) -> None:
        self._of_clients[client] += size
        if not self._of_clients[client]:
            del self._of_clients[client]

    def _forget_old(self) -> None:
        while self._kept and self._now() - self._kept[0][0] > self._kept_s:
            _, client, size = self._kept.popleft()
            self._add(client, -size)


_log = logging.getLogger(__name__)

_UPLOAD = "/gradio_api/upload"
_ALLOWED = tuple(
    (frozenset(methods.split()), re.compile(path))
    for methods, path in (
        ("GET HEAD", r"/"),
        ("GET", r"/config/?"),
        ("GET", r"(/gradio_api)?/theme\.css"),
        ("GET", r"/(assets|static)/[\w./@~+-]+"),
        ("GET", r"/favicon\.ico"),
        ("GET", r"/robots\.txt"),
        ("GET", r"/gradio_api/(info|app_id)/?"),
        ("GET", r"/gradio_api/heartbeat/(?P<session>[A-Za-z0-9_-]{1,64})"),
        ("POST", _UPLOAD),
        ("GET", r"/gradio_api/upload_progress"),
        ("GET HEAD", r"/gradio_api/file=(?!\w+:)[^\0]+"),
        ("GET", r"/login/(huggingface|callback)"),
        ("GET", r"/logout"),
    )
)


def is_allowed(method: str, path: str) -> re.Match[str] | None:
    """The match of a request with the list; None: the studio does not use such a route."""
    for methods, pattern in _ALLOWED:
        if method in methods and (match := pattern.fullmatch(path)):
            return match
    return None


class GradioRoutes:
    """Gradio's app behind the list.

    What Gradio raises on a request becomes status 400: its routes on the list read what clients send, and serve files.
    """

    def __init__(self, app: ASGIApp, page: App, results: WaitingResults, states: PageStates):
        self._app, self._results, self._states = app, results, states
        self._zipped = GZipMiddleware(app)  # the page itself, of which Gradio compresses only the files
        self._uploads = Uploads(2 * FILES_KEPT_S)  # Gradio looks for old files as seldom as they may be old
        self._cookie = known_user(page)

    def _owners(self, session: str) -> set[str]:
        """The ids of the clients whose session this is: none or one."""
        inbox, page = self._results.get(session), self._states.client_of(session)
        return {inbox.client.id} if inbox is not None else {page} if page is not None else set()

    def _known(self, scope: Scope) -> Scope:
        """The scope with the cookie that Gradio expects of a user who is logged in: the door has let this one in."""
        return {**scope, "headers": [*scope["headers"], (b"cookie", self._cookie)]}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        path = scope["path"]
        match = is_allowed(scope["method"], path)
        if match is None:
            await JSONResponse({"detail": "Not Found"}, status_code=404)(scope, receive, send)
            return
        session = match.groupdict().get("session")
        if session is not None and self._owners(session) - {client_of(scope).id}:
            detail = "this session belongs to another client: load the page again"
            await JSONResponse({"detail": detail}, status_code=403)(scope, receive, send)
            return
        if path == _UPLOAD:
            declared = dict(scope["headers"]).get(b"content-length", b"")
            try:
                with self._uploads.counted(client_of(scope).id, declared, receive) as counting:
                    await self._serve(scope, counting, send)
            except Overloaded as error:
                refused = as_http(error)
                answer = JSONResponse({"detail": refused.detail}, refused.status_code, refused.headers)
                await answer(scope, receive, send)
            return
        await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, has_failed = scope["path"], False

        async def without_failures(message: Message) -> None:
            nonlocal has_failed
            has_failed = has_failed or message.get("status") == 500
            if not has_failed:
                await send(message)

        app = self._zipped if path == "/" else self._app
        try:
            await app(self._known(scope) if client_of(scope).is_known else scope, receive, without_failures)
        except ClientDisconnect:
            raise
        except Exception as error:
            _log.warning("Gradio can't serve a request to %s: %s", path.split("=")[0], where(error))
        if has_failed:
            detail = "this request can't be served: it was cut off, or is not what this address takes"
            await JSONResponse({"detail": detail}, status_code=400)(scope, receive, send)
