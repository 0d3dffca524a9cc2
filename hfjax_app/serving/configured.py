"""The application that HFJAX_* variables describe, made when it is imported: what `hfjax_app.serving:app` is.

`serve run` imports it before it starts Ray, so it can still say on which address Ray listens.
"""

import os

import ray

from hfjax_app.runtime.seams.ray import CLUSTER, listen_on_loopback
from hfjax_app.serving.application import build_app
from hfjax_app.settings import load_settings


def stay_on_loopback() -> None:
    """Let a Ray that is started from here listen on the loopback address only, unless the environment says more.

    Ray runs any code that reaches its ports. On Linux it opens them to the network, also those of a single machine.
    """
    if ray.is_initialized() or "RAY_ADDRESS" in os.environ or CLUSTER in os.environ:
        return
    listen_on_loopback()


stay_on_loopback()
app = build_app(load_settings())
