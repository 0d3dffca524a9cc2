"""The hosts of a TPU slice: how many there are, and joining them before jax starts.

A slice of one host needs nothing. On several, every host runs the same command, and jax waits for all of them. What the
environment says is read as jax's own detection reads it: variables (GKE, or set by hand), else a TPU VM's metadata.
"""

import functools
import os
import urllib.request
from collections.abc import Mapping

from hfjax_app.errors import ModelUnavailable

_VARIABLES = ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES")
_METADATA = "/computeMetadata/v1/instance/attributes/worker-network-endpoints"
_METADATA_S = 2.0  # it is on the same machine; where there is none, nobody is to wait for it
_MAX_BYTES = 1 << 20


def hosts_of_slice(environment: Mapping[str, str] = os.environ) -> int:
    """How many hosts this TPU slice has; 1 where nothing says otherwise."""
    for name in _VARIABLES:
        if workers := environment.get(name):
            return _count(workers)
    if "TPU_SKIP_MDS_QUERY" in environment:
        return 1
    server = environment.get("GCE_METADATA_IP", "metadata.google.internal")
    request = urllib.request.Request(f"http://{server}{_METADATA}", headers={"Metadata-Flavor": "Google"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=_METADATA_S) as reply:
            return _count(reply.read(_MAX_BYTES).decode("utf-8", "replace"))
    except OSError:
        return 1


def _count(workers: str) -> int:
    return max(1, sum(bool(worker.strip()) for worker in workers.split(",")))


@functools.cache
def join() -> None:
    """Make jax one system over all hosts of the slice; does nothing where there is one. Before jax has devices.

    Raises:
        ModelUnavailable: jax could not begin to. Where the others don't come within five minutes, it ends the process.
    """
    count = hosts_of_slice()
    if count == 1:
        return
    import jax

    if jax.distributed.is_initialized():
        return
    try:
        jax.distributed.initialize()
    except (RuntimeError, ValueError, OSError) as error:
        raise ModelUnavailable(
            f"this TPU slice has {count} hosts, and they have not met: start the same command on all of them ({error})"
        ) from error
