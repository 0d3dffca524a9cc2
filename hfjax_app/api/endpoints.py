"""All endpoints of the API: each module of this package that has a `register` function is found and called.

A new endpoint is one file in this folder. Its `register(backends, usage)` adds the endpoint with `gr.api`. It returns
the object that answers the endpoint if a tab of the studio calls the same methods.
"""

import importlib
import pkgutil
from typing import TypeVar

import hfjax_app.api
from hfjax_app.api.usage import Usage
from hfjax_app.backends import Backends

T = TypeVar("T")


class Endpoints:
    """Adds every endpoint to the surrounding gr.Blocks.

    Args:
        backends: the models that answer; they may still be warming up.
        usage: where they count the tokens of clients.
    """

    def __init__(self, backends: Backends, usage: Usage):
        self._answering: dict[type, object] = {}
        for name in sorted(module.name for module in pkgutil.iter_modules(hfjax_app.api.__path__)):
            module = importlib.import_module(f"{hfjax_app.api.__name__}.{name}")
            if register := getattr(module, "register", None):
                api = register(backends, usage)
                self._answering[type(api)] = api

    def of(self, kind: type[T]) -> T:
        """The object of this class that answers its endpoints, so that its state, such as threads, exists once."""
        api = self._answering[kind]
        assert isinstance(api, kind)
        return api
