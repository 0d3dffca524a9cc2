"""All endpoints of the API: each module of this package that has a `register` function is found and called.

A new endpoint is one file in this folder. Its `register(service)` adds the endpoint with `gr.api`. It returns
the object that answers the endpoint if a tab of the studio calls the same methods.
"""

import importlib
import pkgutil
from typing import TypeVar

import hfjax_app.api
from hfjax_app.service.service import Service

T = TypeVar("T")


class Endpoints:
    """Adds every endpoint to the surrounding gr.Blocks.

    Args:
        service: that answers.
    """

    def __init__(self, service: Service):
        self._answering: dict[type, object] = {}
        for name in sorted(module.name for module in pkgutil.iter_modules(hfjax_app.api.__path__)):
            module = importlib.import_module(f"{hfjax_app.api.__name__}.{name}")
            if register := getattr(module, "register", None):
                api = register(service)
                self._answering[type(api)] = api

    def of(self, kind: type[T]) -> T:
        """The object of this class that answers its endpoints, so that its state, such as threads, exists once."""
        api = self._answering[kind]
        assert isinstance(api, kind)
        return api
