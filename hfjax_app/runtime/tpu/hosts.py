"""The hosts of a TPU slice: their number, and joining them before jax starts.

A slice of one host needs nothing. On several hosts each one runs the same command, and jax waits for all of them. The
environment is read as jax's own detection does: variables (GKE, or set by hand), else a TPU VM's metadata. Does not
cover the devices of a host: `mesh.py` does.
"""

import functools
import os
import urllib.request
from collections.abc import Mapping

from hfjax_app.errors import ModelUnavailable

_VARIABLES = ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES")
_METADATA = "/computeMetadata/v1/instance/attributes/worker-network-endpoints"
_METADATA_S = 2.0  # the server is on the same machine, and the start must not wait long where there is none
_MAX_BYTES = 1 << 20


def hosts_of_slice(environment: Mapping[str, str] = os.environ) -> int:
    """The number of hosts of this TPU slice; 1 if the environment does not say."""
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
    """Connect jax on all hosts of the slice; does nothing on a single host. Call it before jax has devices.

    If other hosts do not join within five minutes, jax ends the process.

    Raises:
        ModelUnavailable: jax could not start to connect.
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
