"""Ray's private parts are there, where it is installed."""

import inspect
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from hfjax_app.runtime.seams import ray as seam
from tests.runtime.seams.checks import Checks

check = Checks(seam)


@check("loopback only")
def _loopback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    constants = pytest.importorskip("ray._private.ray_constants")
    monkeypatch.setattr(constants, "ENABLE_RAY_CLUSTER", True)
    monkeypatch.setenv(seam.CLUSTER, "1")
    seam.listen_on_loopback()
    assert (constants.ENABLE_RAY_CLUSTER, os.environ[seam.CLUSTER]) == (False, "0")


@check("a router's deployment")
@check("lengths of queues")
def _router(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    router = SimpleNamespace(_deployment_id=SimpleNamespace(name="chat"), replica_queue_len_cache={"one": 3})
    assert seam.deployment_of(router) == "chat"
    assert seam.queue_length(router, SimpleNamespace(replica_id="one")) == 3
    source = inspect.getsource(pytest.importorskip("ray.serve.request_router").RequestRouter)
    assert "self._deployment_id" in source
    assert "def replica_queue_len_cache(" in source


test_it_is_there_and_still_needed = check.test()
