"""All endpoints of Gradio's API: each module of this package that has a `register` function is found and called.

A new endpoint is one file in this folder; its `register(service)` adds it with `gr.api`.
"""

import importlib
import pkgutil

import hfjax_app.api
from hfjax_app.service.service import Service


def add_endpoints(service: Service) -> None:
    """Add every endpoint to the surrounding gr.Blocks.

    Args:
        service: answers; its models may still be warming up.
    """
    for name in sorted(module.name for module in pkgutil.iter_modules(hfjax_app.api.__path__)):
        module = importlib.import_module(f"{hfjax_app.api.__name__}.{name}")
        if register := getattr(module, "register", None):
            register(service)
