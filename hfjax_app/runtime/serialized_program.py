"""A compiled program as a header of JSON data and jax's payload, and back, on the devices that it was compiled for.

jax's payload is a pickle. It is read by an unpickler that knows jax's own classes only. The pytrees of arguments and
results, which jax leaves to its caller, are JSON data. What is read here was checked before.
"""

import importlib
import io
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental import serialize_executable
from jax.tree_util import PyTreeDef

from hfjax_app.runtime.seams import jax as seam

_OURS = "hfjax_app."
_LEAF = "*"


class Unusable(Exception):
    """Why an entry can't be kept or used, in one line."""


@dataclass
class ProgramOrigin:
    """Where the programs of a block came from: see `watch_origin`."""

    compiled: int = 0  # what jax asked its compiler or its cache for
    from_cache: int = 0

    @property
    def is_here(self) -> bool:
        """Whether this process compiled them itself."""
        return self.compiled > 0 and self.from_cache == 0


@contextmanager
def watch_origin() -> Iterator[ProgramOrigin]:
    """Tells whether what this thread compiles in the block is compiled, or comes out of jax's persistent cache.

    A program out of that cache serialises and loads, without some of its functions: it fails when it is first run.
    """
    origin, thread = ProgramOrigin(), threading.get_ident()

    def listen(event: str, *_: Any, **__: Any) -> None:
        if threading.get_ident() == thread:
            origin.compiled += event == seam.COMPILED
            origin.from_cache += event == seam.CACHE_HIT

    jax.monitoring.register_event_duration_secs_listener(listen)
    jax.monitoring.register_event_listener(listen)
    try:
        yield origin
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
        jax.monitoring.unregister_event_listener(listen)


def header_and_payload(compiled: jax.stages.Compiled) -> tuple[dict[str, Any], bytes]:
    """A program's header, without what names it, and its payload.

    Raises:
        Unusable: it names a class that a payload must not.
        Moved: this jax keeps programs in another way.
    """
    payload, in_tree, out_tree = serialize_executable.serialize(compiled)
    if foreign := _globals_of(payload) - seam.ADMITTED:
        raise Unusable(f"jax would keep {'.'.join(min(foreign))} in it, which is not admitted")
    devices = seam.devices_of(compiled)
    header = {
        "platform": devices[0].platform,
        "kind": devices[0].device_kind,
        "devices": [device.id for device in devices],
        "in_tree": _tree_as_json(in_tree),
        "out_tree": _tree_as_json(out_tree),
        "bytes": len(payload),
    }
    return header, payload


def program_of(header: dict[str, Any], payload: bytes) -> jax.stages.Compiled:
    """The program of a header and a payload.

    Raises:
        Unusable: its devices are not here, or it names a class that a payload must not.
        Moved: this jax reads programs in another way.
    """
    here = {device.id: device for device in jax.devices()}
    kind, found = jax.devices()[0].device_kind, len(here)
    if (
        header["kind"] != kind
        or header["platform"] != jax.devices()[0].platform
        or not here.keys() >= {*header["devices"]}
    ):
        raise Unusable(f"it was made for {header['kind']} {header['devices']}, here are {found} of {kind}")
    # With any other number of devices XLA ends the process instead of raising an error.
    devices = [here[number] for number in header["devices"]]
    in_tree, out_tree = _tree_from_json(header["in_tree"]), _tree_from_json(header["out_tree"])
    program: jax.stages.Compiled = seam.read_program(payload, in_tree, out_tree, devices, _admit)
    return program


def _admit(module: str, name: str) -> None:
    if (module, name) not in seam.ADMITTED:
        raise Unusable(f"its payload names {module}.{name}, which is not admitted")


class _Blank:
    """Stands for anything that a payload makes."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


def _globals_of(payload: bytes) -> set[tuple[str, str]]:
    """The modules and names that a payload imports, found without importing or making anything."""
    found = set()

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            found.add((module, name))
            return _Blank

        def persistent_load(self, pid: Any) -> Any:
            return _Blank()

    Reader(io.BytesIO(payload)).load()
    return found


def _tree_as_json(tree: PyTreeDef) -> Any:
    """A pytree's structure: leaves are "*"; only dicts, lists, tuples, None and our own NamedTuples.

    Raises:
        Unusable: it has another kind of node.
    """
    found = _node_as_json(tree.unflatten([_LEAF] * tree.num_leaves))
    if _tree_from_json(found) != tree:
        raise Unusable(f"its pytree can't be kept as data: {tree}")
    return found


def _node_as_json(node: Any) -> Any:
    if node is None or node is _LEAF:
        return node
    kind = type(node)
    if kind is dict:
        return {"dict": [[key, _node_as_json(child)] for key, child in node.items()]}
    if kind in (list, tuple):
        return {kind.__name__: [_node_as_json(child) for child in node]}
    if issubclass(kind, tuple) and hasattr(kind, "_fields") and kind.__module__.startswith(_OURS):
        return {f"{kind.__module__}:{kind.__qualname__}": [_node_as_json(child) for child in node]}
    raise Unusable(f"a {kind.__module__}.{kind.__qualname__} in its pytrees can't be kept as data")


def _tree_from_json(data: Any) -> PyTreeDef:
    return jax.tree.structure(_node_from_json(data))


def _node_from_json(data: Any) -> Any:
    if data is None or data == _LEAF:
        return data
    [(kind, children)] = data.items()
    match kind:
        case "dict":
            return {key: _node_from_json(child) for key, child in children}
        case "list":
            return [_node_from_json(child) for child in children]
        case "tuple":
            return tuple(_node_from_json(child) for child in children)
    module, _, name = kind.partition(":")
    found = getattr(importlib.import_module(module), name, None) if module.startswith(_OURS) else None
    if not (isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields")):
        raise Unusable(f"its pytrees have a {kind}, which is no NamedTuple of this app")
    return found(*map(_node_from_json, children))
