"""The app on Ray Serve: replicas of each model, and one ingress with the studio and the API. Needs `hfjax_app[ray]`.

    serve run hfjax_app.serving:app

Each replica is a process with one model and its warm programs (`replica.py` and the modules of each kind); the ingress
is the web app of `server/app.py` with models that ask replicas (`remote_models.py`). Nothing else of hfjax_app imports
this package or Ray.
"""

from typing import TYPE_CHECKING

from hfjax_app.lazy_import import on_demand

if TYPE_CHECKING:  # for type checkers, which can't follow `__getattr__`
    from hfjax_app.serving.application import build_app
    from hfjax_app.serving.configured import app

__all__ = ["app", "build_app"]

__getattr__ = on_demand(__name__, {"application": ("build_app",), "configured": ("app",)})
