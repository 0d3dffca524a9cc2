"""A package's public names, each imported from its module when it is first asked for (PEP 562).

jax, torch and diffusers take seconds to import; who only wants a request checked does not wait for them.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def on_demand(package: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    Args:
        package: its full name.
        homes: its modules, each with the names that are public. No module may be called as a name is: importing it
            would put the module in the name's place.
    """
    modules = {name: module for module, names in homes.items() for name in names}

    def attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)

    return attribute
