"""uvicorn's and h11's private parts are there, and what is changed is still needed."""

import inspect
from pathlib import Path

import h11
import pytest
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.h11_impl import H11Protocol

from hfjax_app.runtime.seams import server as seam
from tests.runtime.seams.checks import Checks

check = Checks(seam)


@check("patience with clients")
def _patience(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert seam.protocol() is seam.TimedProtocol
    source = inspect.getsource(H11Protocol)
    for name in ("conn", "cycle", "loop", "transport"):
        assert f"self.{name}" in source


@check("small chunks")
def _chunks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n1\r\ny\r\n")
    events = [connection.next_event() for _ in range(3)]
    assert [event.chunk_start for event in events[1:]] == [True, True], "any number of chunks of any size is taken"


@check("trusted proxies")
def _proxies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trusted = seam.trusted_by(ProxyHeadersMiddleware(lambda *_: None, trusted_hosts="10.0.0.0/8"))
    assert "10.1.2.3" in trusted
    assert "192.0.2.1" not in trusted


test_it_is_there_and_still_needed = check.test()
