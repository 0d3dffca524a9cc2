"""What compiled programs depend on, as a digest: all of a process (`Fingerprint`), and one program (`signature_of`).

Two fingerprints that differ say in words where. Nothing heavy is imported before one is made.
"""

import functools
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Whose versions change what is traced, lowered or compiled.
_PACKAGES = ("jax", "jaxlib", "torch", "torchax", "transformers", "diffusers")
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
# The layers below `backends/`, which import nothing of the others (tests/test_layers.py).
_TRACED = ("limits.py", "chat/**/*.py", "images/**/*.py", "sentiment/**/*.py", "runtime/**/*.py")
_OF_SERVERS = {f"runtime/seams/{name}.py" for name in ("gradio", "ray", "server")}
# Settings of jax that change no program: where it keeps, logs, checks and moves things, and which devices it looks for
# (those that it found are named). All others count, also ones that a later jax adds.
_HARMLESS = re.compile(
    r"cache|log|dump|traceback|trace_guard|transfer|timeout|platform|visible_devices|cpu_devices|preemption|recoverab"
    r"|distributed|profil|pgle|pprint|color|guard|leak|proxy|explain|report|warn|serialization|export|source_|mock_"
    r"|frames|backend$|client_create|async_dispatch|share_binary|enable_checks"
)
_PLAIN = (type(None), bool, int, float, str)  # JSON's own; an enum of strings is none of them
_MOST_WORDS = 3  # differences that are named; the rest is counted
_MOST_CHARACTERS = 60  # of a value in words


@dataclass(frozen=True)
class Fingerprint:
    """What some compiled programs depend on.

    Attributes:
        parts: JSON data, in the order of what is told first: "versions", "devices", "cpu_features" (of programs for a
            CPU), "facts", "flags", "jax_settings" and "sources".
    """

    parts: dict[str, Any]

    @classmethod
    def of(cls, facts: Mapping[str, Any], devices: Sequence[Any] | None = None) -> "Fingerprint":
        """The fingerprint of programs that this process compiles.

        Args:
            facts: what else the programs depend on, such as a model's config and settings, as JSON data. Whatever a
                program takes from outside of its arguments belongs here.
            devices: that the programs are compiled for, in order, also a topology's; None: all of this process.

        Raises:
            TypeError: something in `facts` is no JSON data; says what and where.
        """
        import jax

        found = list(jax.devices() if devices is None else devices)
        first = found[0]
        parts = {
            "versions": _versions(first.platform),
            "devices": {
                "platform": first.platform,
                "kind": first.device_kind,
                "count": len(found),
                "ids": [device.id for device in found],
                # Programs send to neighbours, so it matters which chip is where.
                "places": [_place(device) for device in found],
                # CUDA's and its driver's, which no Python package names
                "runtime": first.client.platform_version if first.platform == "gpu" else None,
            },
            "cpu_features": cpu_features() if first.platform == "cpu" else None,
            "facts": facts,
            "flags": {name: " ".join(os.environ.get(name, "").split()) for name in _FLAGS},
            "jax_settings": _jax_settings(),
            "sources": sources(),
        }
        return cls(_as_json(parts, ""))

    @functools.cached_property
    def digest(self) -> str:
        """64 hexadecimal digits; the same in every process that has the same parts."""
        return hashlib.sha256(json.dumps(self.parts, sort_keys=True, allow_nan=False).encode()).hexdigest()

    def difference(self, other: Mapping[str, Any]) -> str:
        """In one line, what another fingerprint's parts have otherwise: "made by jax 0.10.1, this is 0.10.2".

        Args:
            other: the `parts` of programs that were made earlier.

        Returns:
            The line; "" where nothing differs.
        """
        lines = list(_differences(other, self.parts))
        more = f"; and {len(lines) - _MOST_WORDS} more" if len(lines) > _MOST_WORDS else ""
        return "; ".join(lines[:_MOST_WORDS]) + more

    def distance(self, other: Mapping[str, Any]) -> tuple[bool, int]:
        """How far another fingerprint's parts are from these: whether the facts differ, and in how many places."""
        return other.get("facts") != self.parts["facts"], sum(1 for _ in _differences(other, self.parts))


def signature_of(args: Any, donate: Sequence[int] = (), shardings: Any = None, *, static: str = "") -> str:
    """A digest of how a program is called: what its arguments are, and where they and the results are.

    It does not see what a function takes from outside of its arguments: that belongs into the program's name or the
    fingerprint's facts. Arrays of any but the default layout are not told apart.

    Args:
        args: example arguments, as `Programs.compile` takes them: arrays, numbers or jax.ShapeDtypeStruct, in a pytree.
        donate: positions of the donated arguments.
        shardings: of the results, a pytree or a prefix of one; None: not chosen.
        static: what else tells this call's program from another's.

    Returns:
        64 hexadecimal digits; the same in every process.

    Raises:
        TypeError: a sharding that is neither a NamedSharding nor that of a single device.
    """
    import jax

    leaves, tree = jax.tree.flatten(args)
    places, place_tree = jax.tree.flatten(shardings)
    described = {
        "args": [_described(leaf) for leaf in leaves],
        "tree": str(tree),
        "donate": sorted(donate),
        "results": [_sharding(place) for place in places],
        "results_tree": str(place_tree),
        "static": static,
    }
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def _described(leaf: Any) -> list[Any]:
    """An argument's shape, dtype as jax has it, whether that gives way to others, and where it is if that is fixed."""
    import jax
    import numpy as np

    is_number = isinstance(leaf, bool | int | float | complex)
    dtype = jax.dtypes.canonicalize_dtype(np.result_type(leaf) if is_number else leaf.dtype, allow_extended_dtype=True)
    is_weak = is_number or getattr(leaf, "weak_type", False)
    is_fixed = getattr(leaf, "committed", True)
    place = _sharding(getattr(leaf, "sharding", None)) if is_fixed else None
    return [list(np.shape(leaf)), str(dtype), bool(is_weak), place]


def _sharding(sharding: Any) -> Any:
    from jax.sharding import NamedSharding, SingleDeviceSharding

    if sharding is None:
        return None
    if isinstance(sharding, SingleDeviceSharding):
        devices: set[Any] = sharding.device_set
        return [[device.id for device in devices], sharding.memory_kind]
    if isinstance(sharding, NamedSharding):
        mesh: Any = sharding.mesh
        ids = [device.id for device in mesh.devices.flat]
        return [ids, list(mesh.shape.items()), str(mesh.axis_types), str(sharding.spec), sharding.memory_kind]
    raise TypeError(f"a program's signature can't tell where {sharding!r} is")


def cpu_features() -> list[str]:
    """The instructions that this host's CPU has beyond its family's common ones, as Linux names them."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), f": {platform.processor()}")
    return sorted({platform.machine(), *features.partition(":")[2].split()})


@functools.cache
def sources() -> str:
    """A digest of the app's Python files that programs can come from: not of its pages, its API and its commands."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(path for part in _TRACED for path in root.glob(part)):
        name, content = path.relative_to(root).as_posix(), path.read_bytes()
        if name in _OF_SERVERS:
            continue
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _versions(device_platform: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in (*_PACKAGES, "libtpu") if device_platform == "tpu" else _PACKAGES:
        try:
            # torch's builds for CPUs and for CUDA ("+cpu", "+cu130") trace the same
            found[name] = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    # A last number of Python's changes neither what is traced nor how it is pickled.
    return found | {"Python": ".".join(platform.python_version_tuple()[:2])}


def _jax_settings() -> dict[str, Any]:
    import jax

    # An attribute where there is one: the dictionary doesn't have what a context manager has changed in this thread.
    values = jax.config.values.items()
    settings = {name: getattr(jax.config, name, value) for name, value in values if not _HARMLESS.search(name)}
    return {name: value if type(value) in _PLAIN else str(value) for name, value in settings.items()}


def _place(device: Any) -> list[int] | None:
    """Where a chip is in its slice and a core on its chip; None for devices that are in no grid."""
    coordinates = getattr(device, "coords", None)
    return None if coordinates is None else [*coordinates, getattr(device, "core_on_chip", 0)]


def _as_json(value: Any, where: str) -> Any:
    """The value as JSON gives it back.

    Raises:
        TypeError: it is no JSON data.
    """
    if type(value) in _PLAIN and (type(value) is not float or math.isfinite(value)):
        return value
    if isinstance(value, list | tuple):
        return [_as_json(each, f"{where}[{at}]") for at, each in enumerate(value)]
    if isinstance(value, Mapping) and all(type(key) in (str, int) for key in value):
        found = {str(key): _as_json(each, f"{where}.{key}".lstrip(".")) for key, each in value.items()}
        if len(found) == len(value):
            return found
    said = repr(value)
    raise TypeError(f"a fingerprint's {where} = {said[:_MOST_CHARACTERS]} is no JSON data ({type(value).__name__})")


def _differences(made: Any, here: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """One line for each place where two JSON values differ."""
    if made == here and type(made) is type(here):
        return
    if isinstance(made, Mapping) and isinstance(here, Mapping):
        for key in [*here, *sorted({*made} - {*here})]:
            yield from _differences(made.get(key), here.get(key), (*path, key))
        return
    match path:
        case ("sources",):
            yield "made by other sources of this app"
        case ("versions", name):
            yield f"made by {name} {made or 'not there'}, this is {here or 'not there'}"
        case ("cpu_features",) if isinstance(made, list) and isinstance(here, list):
            more, less = sorted({*made} - {*here}), sorted({*here} - {*made})
            said = [f"with {_words(' '.join(more))}"] * bool(more) + [f"without {_words(' '.join(less))}"] * bool(less)
            yield f"made for a CPU {' and '.join(said)}"
        case _:
            yield f"made with {'.'.join(path[1:] or path)} = {_words(made)}, this has {_words(here)}"


def _words(value: Any) -> str:
    said = value if isinstance(value, str) and value else json.dumps(value)
    return said if len(said) <= _MOST_CHARACTERS else f"{said[:_MOST_CHARACTERS]}..."
