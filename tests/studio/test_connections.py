"""Clients that send slowly, send nothing, or read nothing."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest
import uvicorn
from fastapi import Body, FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from hfjax_app.runtime.seams import server as seam
from hfjax_app.runtime.seams.server import TimedProtocol
from hfjax_app.server import door
from hfjax_app.server import server as web_server
from hfjax_app.server.app import Edge
from hfjax_app.server.door import COOKIE, OAUTH_COOKIE, Bodies
from hfjax_app.server.server import cut_stalled_readers

from .conftest import LIMIT_S

LIMIT = 1_000_000


class Server:
    def __init__(self, listener: socket.socket):
        self.port: int = listener.getsockname()[1]
        self.left = threading.Event()
        app = FastAPI()
        app.add_middleware(Bodies, limit=LIMIT)

        @app.post("/length")
        async def length(request: Request) -> JSONResponse:
            return JSONResponse(len(await request.body()))

        @app.post("/typed")
        async def typed(body: Annotated[dict[str, int], Body()]) -> JSONResponse:
            return JSONResponse(len(body))

        async def chunks() -> AsyncIterator[bytes]:
            try:
                while True:
                    await asyncio.sleep(0)
                    yield b"x" * 65_536
            finally:
                self.left.set()

        @app.get("/endless")
        async def endless() -> StreamingResponse:
            return StreamingResponse(chunks())

        self.server = uvicorn.Server(uvicorn.Config(app, http=TimedProtocol, log_level="warning"))
        self.thread = threading.Thread(target=lambda: asyncio.run(self.server.serve(sockets=[listener])))
        self.thread.start()

    def connect(self, *lines: str) -> socket.socket:
        peer = socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S)
        peer.sendall("".join(f"{line}\r\n" for line in lines).encode())
        return peer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Server]:
    """The limits are long, so that a slow machine meets none; a test's parameter makes those short that it is about."""
    for module, name in ((door, "HTTP_BODY_S"), (seam, "HTTP_HEADERS_S"), (web_server, "HTTP_STALLED_S")):
        monkeypatch.setattr(module, name, getattr(request, "param", {}).get(name, int(LIMIT_S)))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        cut_stalled_readers(listener)
        server = Server(listener)
        yield server
        server.server.should_exit = True
        server.server.force_exit = True
        server.thread.join(LIMIT_S)


POST = ("POST /length HTTP/1.1", "Host: x")


def answer(peer: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    with peer:
        return b"".join(iter(lambda: peer.recv(65_536), b""))


@pytest.mark.parametrize("server", [{"HTTP_BODY_S": 0.3}], indirect=True)
@pytest.mark.parametrize("path", ["/length", "/typed"])
def test_a_slow_body_is_a_408(server: Server, path: str) -> None:
    """200 such requests were held for as long as their clients liked. FastAPI, which reads typed bodies, said 400."""
    json = ("Content-Type: application/json",)
    peer = server.connect(f"POST {path} HTTP/1.1", "Host: x", *json, "Content-Length: 100", "", "ten bytes")
    said = answer(peer)
    assert said.startswith(b"HTTP/1.1 408 ")
    assert b"the body came too slowly: 11 bytes in 0.3 s" in said


@pytest.mark.parametrize("server", [{"HTTP_BODY_S": 0.3}], indirect=True)
def test_a_body_that_keeps_coming_has_its_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than a body of a few bytes may take, and no slower than HTTP_BODY_BYTES_PER_S."""
    monkeypatch.setattr(door, "HTTP_BODY_BYTES_PER_S", 10_000 / LIMIT_S)
    peer = server.connect(*POST, "Content-Length: 40000", "Connection: close", "", "x" * 9_998)
    for _ in range(3):
        time.sleep(0.15)
        peer.sendall(b"x" * 10_000)
    assert answer(peer).endswith(b"40000")


def test_long_bodies_are_a_413(server: Server) -> None:
    declared = server.connect(*POST, f"Content-Length: {LIMIT + 1}", "", "x")
    assert answer(declared).startswith(b"HTTP/1.1 413 ")
    chunked = server.connect(*POST, "Transfer-Encoding: chunked", "", "100000", "x" * 0x100000)
    with contextlib.suppress(ConnectionResetError):  # the rest of the body is not read
        assert answer(chunked).startswith(b"HTTP/1.1 413 ")


def test_json_of_many_parts_is_a_413(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of four million wrong numbers stopped the event loop for a minute, and took 8 GB."""
    monkeypatch.setattr(door, "HTTP_MAX_JSON_PARTS", 1_000)
    for count, status in ((999, b"422"), (1_002, b"413"), (400_000, b"413")):  # the last is read whole, or it is reset
        body = f"[{','.join('0' * count)}]"
        lines = ("Content-Type: application/json", f"Content-Length: {len(body)}", "Connection: close", "", body)
        said = answer(server.connect("POST /typed HTTP/1.1", "Host: x", *lines))
        assert said.startswith(b"HTTP/1.1 " + status)
        assert (b"JSON with over 1,000 commas and brackets" in said) == (status == b"413")


def test_forms_that_take_long_to_read_are_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A field in "punycode" held the event loop for as long as the square of its length; 16 MB of & for 10 s."""
    monkeypatch.setattr(door, "HTTP_MAX_FORM_PARTS", 100)
    form = 'Content-Type: multipart/form-data; boundary="x y"'
    for head, body, says in (
        ([f"{form}; charset=punycode"], "", b" 415 "),
        ([f"{form}; charset=utf-8; charset=idna"], "", b" 415 "),
        ([f"{form}; charset=utf-8"], "", b" 200 "),
        ([f'{form}; charset="UTF-8"'], "\r\n--" * 100, b" 200 "),
        ([form], "\r\n--" * 101, b" 413 "),
        (["Content-Type: application/x-www-form-urlencoded"], "&" * door.HTTP_MAX_LOGIN, b" 200 "),
        (["Content-Type: application/x-www-form-urlencoded"], "&" * (door.HTTP_MAX_LOGIN + 1), b" 413 "),
        (["Content-Type: application/json", "Content-Type: text/plain"], "[]", b" 400 "),
    ):
        lines = (*head, f"Content-Length: {len(body)}", "Connection: close", "", body)
        assert answer(server.connect(*POST, *lines)).startswith(b"HTTP/1.1" + says), (head, len(body))


def test_small_chunks_are_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six megabytes of chunks of one byte held the event loop for 12 s."""
    monkeypatch.setattr(seam, "HTTP_SMALL_CHUNKS", 10)
    chunked = (*POST, "Transfer-Encoding: chunked", "Connection: close", "")
    for chunk, count, status in (
        ("1\r\nx\r\n", 10, b"200"),
        ("1\r\nx\r\n", 11, b"400"),
        ("100\r\n" + "x" * 256 + "\r\n", 20, b"200"),
    ):
        assert answer(server.connect(*chunked, chunk * count + "0", "")).startswith(b"HTTP/1.1 " + status), count


def test_long_headers_are_refused(server: Server) -> None:
    """h11 bounds only what comes in pieces: a cookie of 250 KB in one piece took minutes to read."""
    for length, status in ((30_000, b"200"), (40_000, b"400")):
        said = answer(server.connect(*POST, f"Cookie: {'x' * length}", "Content-Length: 0", "Connection: close", ""))
        assert said.startswith(b"HTTP/1.1 " + status)


def test_nonsense_after_an_answer_closes_the_connection(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """h11 has no second answer for it: asyncio wrote a traceback."""
    peer = server.connect("POST /nothing HTTP/1.1", "Host: x", "Transfer-Encoding: chunked", "", "1", "x")
    said = peer.recv(65_536)
    while not said.endswith(b"}"):
        said += peer.recv(65_536)
    assert said.startswith(b"HTTP/1.1 404 ")
    peer.sendall(b"nonsense\r\n")
    assert answer(peer) == b""
    assert [record.name for record in caplog.records if record.exc_info] == []


def test_only_own_cookies_are_read() -> None:
    """Python 3.11.7 takes 14 s to read a cookie of 60 KB in quotes; one such header held the event loop."""
    kept: list[list[tuple[bytes, bytes]]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        kept.append([each for each in scope["headers"] if each[0] == b"cookie"])

    for *sent, own in (
        (b'a="\\\\"; hfjax-session=x', b" hfjax-session=x"),
        (b"hfjax-session=x;b=1", b"session=y;c", b"hfjax-session=x;session=y"),
        (b'hfjax-session="x"', None),
    ):
        headers = [(b"host", b"x"), *((b"cookie", each) for each in sent)]
        scope = {"type": "http", "path": "/", "method": "GET", "headers": headers}
        edge = Edge(app, trusted="", cookies=(COOKIE, OAUTH_COOKIE))
        asyncio.run(edge(scope, None, None))  # type: ignore[arg-type]
        assert kept.pop() == ([] if own is None else [(b"cookie", own)])


@pytest.mark.parametrize(
    ("space", "frames", "ancestors"),
    [
        (None, "", "'self'"),
        (None, "https://a.example,https://b.example", "'self' https://a.example https://b.example"),
        ("ada/studio", "*", "'self' https://huggingface.co https://*.huggingface.co https://*.hf.space *"),
    ],
)
def test_who_may_frame_a_page(monkeypatch: pytest.MonkeyPatch, space: str | None, frames: str, ancestors: str) -> None:
    if space is not None:
        monkeypatch.setenv("SPACE_ID", space)
    sent: list[dict[str, Any]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "path": "/", "method": "GET", "headers": []}
    asyncio.run(Edge(app, trusted="", frames=frames)(scope, None, send))  # type: ignore[arg-type]
    policy = dict(sent[0]["headers"])[b"content-security-policy"].decode()
    assert f"; frame-ancestors {ancestors}; " in policy


@pytest.mark.parametrize("server", [{"HTTP_HEADERS_S": 0.3}], indirect=True)
@pytest.mark.parametrize("lines", [(), ("GET /endless HTTP/1.1",), ("GET /endless HTTP/1.1", "Host: x", "X: y")])
def test_a_connection_without_a_request_is_closed(server: Server, lines: tuple[str, ...]) -> None:
    assert answer(server.connect(*lines)) == b""


@pytest.mark.parametrize("server", [{"HTTP_STALLED_S": 1}], indirect=True)
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux's kernel cuts them")
def test_a_reader_that_stalls_is_cut(server: Server) -> None:
    peer = server.connect("GET /endless HTTP/1.1", "Host: x", "")
    assert server.left.wait(LIMIT_S)
    peer.close()
