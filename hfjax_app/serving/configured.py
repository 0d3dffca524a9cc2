"""The application that HFJAX_* variables describe, made when it is imported: what `hfjax_app.serving:app` is.

`serve run` imports it before it starts Ray, so it can still say on which address Ray listens.
"""

import os

import ray
from ray._private import ray_constants

from hfjax_app.serving.application import build_app
from hfjax_app.settings import load_serving_settings

# Ray's own name; it is off by default where Ray does not support clusters.
_CLUSTER = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def stay_on_loopback() -> None:
    """Let a Ray that is started from here listen on the loopback address only, unless the environment says more.

    Ray runs any code that reaches its ports. On Linux it opens them to the network, also those of a single machine.
    """
    if ray.is_initialized() or "RAY_ADDRESS" in os.environ or _CLUSTER in os.environ:
        return
    os.environ[_CLUSTER] = "0"  # for the processes that Ray starts
    ray_constants.ENABLE_RAY_CLUSTER = False  # for this one, which has read the variable


stay_on_loopback()
app = build_app(load_serving_settings())
