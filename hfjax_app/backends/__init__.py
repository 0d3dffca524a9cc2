"""Settings -> models that serve: each with its own state, ledger and counts. The only place that picks models."""

from hfjax_app.backends.backend import Backend
from hfjax_app.backends.registry import Backends

__all__ = ["Backend", "Backends"]
