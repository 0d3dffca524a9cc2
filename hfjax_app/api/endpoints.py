"""The API as a whole: each module of this package that has a `register` function is found and called.

A new endpoint is one file in this folder. Its `register(backends)` adds the endpoint with `gr.api`, and returns the
object that answers it where a tab of the studio calls the same methods.
"""

import importlib
import pkgutil
from typing import Any, TypeVar

import hfjax_app.api
from hfjax_app.backends import Backends

T = TypeVar("T")


class Endpoints:
    """Adds every endpoint to the surrounding gr.Blocks.

    Args:
        backends: what the endpoints answer with; they may still be warming up.
    """

    def __init__(self, backends: Backends):
        self._found: dict[type, Any] = {}
        for name in sorted(module.name for module in pkgutil.iter_modules(hfjax_app.api.__path__)):
            module = importlib.import_module(f"{hfjax_app.api.__name__}.{name}")
            if register := getattr(module, "register", None):
                answers = register(backends)
                self._found[type(answers)] = answers

    def of(self, kind: type[T]) -> T:
        """The object of this class that answers its endpoints: state such as its threads exists once."""
        found = self._found[kind]
        assert isinstance(found, kind)
        return found
