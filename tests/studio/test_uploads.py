"""The bytes that clients may upload."""

import contextlib
from types import SimpleNamespace

import pytest
from starlette.types import Message, Receive

from hfjax_app.errors import Overloaded
from hfjax_app.limits import HTTP_MAX_BODY, UPLOAD_LEAST, UPLOADS_BYTES, UPLOADS_TOTAL_BYTES
from hfjax_app.server.gradio_routes import Uploads

DAY_S = 86_400
FULL = UPLOADS_BYTES // HTTP_MAX_BODY  # uploads that fill a client's share


BODY = bytes(HTTP_MAX_BODY)


async def whole() -> Message:
    return {"type": "http.request", "body": BODY}


async def one_byte() -> Message:
    return {"type": "http.request", "body": b"x"}


def upload(uploads: Uploads, client: str, declared: bytes = b"%d" % HTTP_MAX_BODY, body: Receive = whole) -> None:
    with contextlib.suppress(StopIteration), uploads.counted(client, declared, body) as receive:
        receive().send(None)  # an event loop for each would take a minute


def test_a_client_can_not_fill_the_disk() -> None:
    clock = SimpleNamespace(now=0.0)
    uploads = Uploads(DAY_S, lambda: clock.now)
    for _ in range(FULL - 1):
        upload(uploads, "ada")
    upload(uploads, "ada", b"")  # without a length it may be the longest
    with pytest.raises(Overloaded, match="your uploads have 512 MiB already") as refused:
        upload(uploads, "ada", b"1")
    assert refused.value.retry_after_s == DAY_S + 1
    upload(uploads, "bob")
    clock.now = DAY_S + 1
    upload(uploads, "ada")


def test_small_uploads_count_for_their_files() -> None:
    """And for the memory of this count; bob, who has uploaded earlier, does not tell ada when she may go on."""
    clock = SimpleNamespace(now=0.0)
    uploads = Uploads(DAY_S, lambda: clock.now)
    for client, clock.now in (("bob", 0), ("ada", 100)):
        for _ in range(UPLOADS_BYTES // UPLOAD_LEAST):
            upload(uploads, client, b"1", one_byte)
        with pytest.raises(Overloaded, match="your uploads have 512 MiB already") as refused:
            upload(uploads, client, b"1", one_byte)
        assert refused.value.retry_after_s == DAY_S + 1


def test_all_clients_together_can_not_fill_it() -> None:
    uploads = Uploads(DAY_S)
    for number in range(UPLOADS_TOTAL_BYTES // HTTP_MAX_BODY):
        upload(uploads, str(number // FULL))
    with pytest.raises(Overloaded, match="all visitors' uploads have 8,192 MiB already"):
        upload(uploads, "ada", b"1")
