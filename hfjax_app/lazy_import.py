"""Public names of a package that are imported from their modules at first use (PEP 562).

jax, torch and diffusers take seconds to import, and code that only checks a request does not need them.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def on_demand(package: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    Args:
        package: its full name.
        homes: its modules, each with its public names. No module may have the name of a public name: its import would
            replace the name.
    """
    modules = {name: module for module, names in homes.items() for name in names}

    def attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)

    return attribute
