"""The models of an app: each has its own state, ledger and counts. The only package that chooses models by settings."""

from hfjax_app.backends.backend import Backend
from hfjax_app.backends.registry import Backends

__all__ = ["Backend", "Backends"]
