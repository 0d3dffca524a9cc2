"""Ray runs the code of every client of its ports: without being told otherwise they are on this machine's loopback."""

import json
import os
import subprocess
import sys

import pytest

from .conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

START = """
import hfjax_app.serving
hfjax_app.serving.app
import json, socket, ray
from pathlib import Path
from ray._private.worker import _global_node

def listening():
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A":
                address, port = local.split(":")
                found.add((address, int(port, 16)))
    return found

before = listening()
ray.init(num_cpus=1)

@ray.remote
def one():
    return 1

assert ray.get(one.remote()) == 1
print(json.dumps(sorted(listening() - before)))
"""
LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


def test_ray_is_reached_from_this_machine_only() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "HFJAX_"))}
    environment |= {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run([sys.executable, "-c", START], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ports = json.loads(done.stdout.splitlines()[-1])
    assert len(ports) > 3
    assert [port for address, port in ports if address not in LOOPBACK] == []
