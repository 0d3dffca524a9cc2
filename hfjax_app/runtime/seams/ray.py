"""Ray: the address that it listens on, and what its router knows of a deployment's replicas."""

import os
from typing import Any

from hfjax_app.runtime.seams import Seam, missing, replace

VERSIONS = {"ray": "2.60.0"}
SEAMS = (
    Seam(
        name="loopback only",
        what="ENABLE_RAY_CLUSTER of ray._private.ray_constants",
        without="a Ray that is started from here listens on the network, where it runs any code that reaches its ports",
    ),
    Seam(
        name="a router's deployment",
        what="`_deployment_id` of RequestRouter",
        without="the replicas' reports are not shown on the page",
    ),
    Seam(
        name="lengths of queues",
        what="replica_queue_len_cache of RequestRouter",
        without="a conversation always waits for the replica that holds it, however busy that is",
    ),
)

CLUSTER = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # Ray's variable; off by default where Ray does not support clusters


def listen_on_loopback() -> None:
    """Let the Ray that this process starts, and the processes that it starts, listen on the loopback address only."""
    os.environ[CLUSTER] = "0"  # for the processes that Ray starts
    where = "ray._private.ray_constants:ENABLE_RAY_CLUSTER"  # for this one, which has read the variable
    replace(where, False, without="Ray may listen on the network: close its ports with a firewall")


def deployment_of(router: Any) -> str | None:
    """The name of a router's deployment; None: unknown."""
    found = getattr(router, "_deployment_id", None)
    if found is None:
        missing("ray.serve.request_router:RequestRouter._deployment_id", "replicas' reports are not shown")
    return None if found is None else str(found.name)


def queue_length(router: Any, replica: Any) -> int | None:
    """How many requests a replica has, as its router has heard; None: unknown.

    Args:
        replica: a RunningReplica.
    """
    lengths = getattr(router, "replica_queue_len_cache", None)
    if lengths is None:
        missing("ray.serve.request_router:RequestRouter.replica_queue_len_cache", "requests wait for busy replicas")
        return None
    length: int | None = lengths.get(replica.replica_id)
    return length
