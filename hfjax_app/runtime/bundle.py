"""Compiled programs kept in files: another process loads and runs them, and traces and compiles nothing.

A bundle is a folder per fingerprint. A program is a file in it: a line with the format, the lengths and a checksum of
what follows, a header as JSON, and jax's serialised executable. That is machine code, and a checksum is no signature:
only the owner may write the folder, and a copied bundle is to be trusted like any program. Whatever is
wrong with an entry costs a line of the log and a compilation.

jax's payload is a pickle. It is read by an unpickler that knows jax's own classes only. The pytrees of arguments and
results, which jax leaves to its caller, are JSON data.
"""

import contextlib
import functools
import hashlib
import importlib
import io
import json
import os
import pickle
import re
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable
from jax.tree_util import PyTreeDef

from hfjax_app.errors import kind_and_line
from hfjax_app.runtime.fingerprint import Fingerprint
from hfjax_app.runtime.seams import Moved
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


_FORMAT = b"hfjax-program-1"  # another one: whatever changes how a file is read
_FIRST_LINE = re.compile(rb"(\S{1,40}) (\d{1,12}) (\d{1,12}) ([0-9a-f]{64})\n")  # bytes of header and payload, checksum
_PROGRAM, _PARTS, _FACTS, _UNFINISHED = ".program", "fingerprint", "facts", ".unfinished"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,119}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_REMOVED = ".removed-"
_SOON_S = 3600.0  # a file that is not finished by then never will be


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds that a program took where it was compiled; 0 if unknown."""

    traced: float = 0.0
    compiled: float = 0.0


NO_COST = Cost()


class Bundle:
    """The programs of one fingerprint. Any thread may load and save, and so may other processes at the same time.

    Args:
        root: the folder of all bundles; made when something is saved.
        fingerprint: what the programs depend on.

    Attributes:
        folder: where the programs are.
        costs: by a program's name, of those that were loaded.
        reasons: by a program's name, in one line, why it could not be loaded or saved the last time; without those
            that could be.
    """

    def __init__(self, root: Path, fingerprint: Fingerprint):
        self.fingerprint = fingerprint
        self.folder = root / fingerprint.digest
        self.reasons: dict[str, str] = {}
        self.costs: dict[str, Cost] = {}

    def load(self, name: str, signature: str) -> jax.stages.Compiled | None:
        """A program that another process saved, on the devices that it was compiled for.

        Nothing has run yet: the caller runs it once and reads the result before it serves.

        Args:
            name: the program's.
            signature: `signature_of` the call.

        Returns:
            The program; None: there is none, or it can't be used. Then `reasons` says why.
        """
        try:
            header, payload = self._read_program(name)
            if header["signature"] != signature:
                raise Unusable("it was made for other arguments, donation or shardings")
            program = program_of(header, payload)
        except (Unusable, Moved) as error:
            self.reasons[name] = str(error)
            return None
        except Exception as error:  # jax's, XLA's, or a header of another make: compiling goes on working
            self.reasons[name] = f"it can't be loaded: {kind_and_line(error)}"
            return None
        self.reasons.pop(name, None)
        self.costs[name] = _cost_of(header)
        with contextlib.suppress(OSError):  # a folder that this process can only read
            os.utime(self.folder / _PARTS)  # for `prune`
        return program

    def save(
        self, name: str, signature: str, compiled: jax.stages.Compiled, origin: ProgramOrigin, cost: Cost = NO_COST
    ) -> bool:
        """Keep a program, in place of one of the same name.

        Args:
            name: letters, digits and "_.-", at most 120.
            signature: `signature_of` the call.
            compiled: for devices of this process or of a topology.
            origin: of `watch_origin` around its `compile`.
            cost: what it took.

        Returns:
            Whether it is kept. If it isn't, `reasons` says why.
        """
        try:
            if not origin.is_here:
                raise Unusable("it was not compiled here but comes from jax's cache, and would fail when it is run")
            header, payload = header_and_payload(compiled)
            header |= {"name": name, "signature": signature, "fingerprint": self.fingerprint.digest}
            header |= {"traced": cost.traced, "compiled": cost.compiled}
            self._write(self._file(name), header, payload)
        except (Unusable, Moved) as error:
            self.reasons[name] = str(error)
            return False
        except Exception as error:  # a program that jax can't serialise, or a full disk: it still serves this process
            self.reasons[name] = f"it can't be kept: {kind_and_line(error)}"
            return False
        self.reasons.pop(name, None)
        return True

    def drop(self, name: str) -> None:
        """Remove a program, such as one that was loaded and failed when it was first run."""
        with contextlib.suppress(Unusable, OSError):  # not there, or not ours
            self._file(name).unlink()

    def clear(self) -> None:
        """Remove all programs: one of them failed when it was first run, so the others are not to be trusted."""
        for name in self.names():
            self.drop(name)

    def names(self) -> list[str]:
        """Of the programs that are here, usable or not, in order."""
        return sorted(path.stem for path in self.folder.glob(f"[!.]*{_PROGRAM}"))

    def header(self, name: str) -> dict[str, Any] | None:
        """What is written down about a program that is here and undamaged: also of one that can't be loaded here."""
        try:
            return self._read_program(name)[0]
        except (Unusable, OSError):
            return None

    @property
    def facts(self) -> dict[str, Any]:
        """What `keep_facts` kept; {} where nothing is, or it can't be used."""
        try:
            return _read(self.folder / _FACTS)[0]
        except (Unusable, OSError):
            return {}

    def keep_facts(self, facts: Mapping[str, Any]) -> bool:
        """Keep what a start finds out beside its programs, such as a cache's layout, in place of earlier facts.

        Args:
            facts: JSON data.

        Returns:
            Whether they are kept.

        Raises:
            TypeError, ValueError: they are no JSON data.
        """
        content = json.loads(json.dumps(facts, allow_nan=False))
        try:
            self._write(self.folder / _FACTS, content, b"")
        except (Unusable, OSError):
            return False
        return True

    def _file(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise Unusable(f"{name!r} is no name for a file")
        return self.folder / f"{name}{_PROGRAM}"

    def _read_program(self, name: str) -> tuple[dict[str, Any], bytes]:
        path = self._file(name)
        if not self.folder.is_dir():
            raise Unusable(self._why_none)
        _check_owner(self.folder)
        try:
            header, payload = _read(path)
        except FileNotFoundError:
            raise Unusable("the bundle has no such program") from None
        if header.get("name") != name or header.get("fingerprint") != self.fingerprint.digest:
            raise Unusable("its file was made under another name or for another bundle")
        return header, payload

    @functools.cached_property
    def _why_none(self) -> str:
        """Why there is no folder: how the bundle that is most like this one differs."""
        others = []
        for folder in _bundles(self.folder.parent):
            with contextlib.suppress(Unusable, OSError):
                parts, _ = _read(folder / _PARTS)
                others.append((self.fingerprint.distance(parts), self.fingerprint.difference(parts)))
        return f"the nearest bundle was {min(others)[1]}" if others else "there are no bundles yet"

    def _write(self, path: Path, header: Mapping[str, Any], payload: bytes) -> None:
        """Write a file of the folder as a whole or not at all, and first what the folder is for."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        _check_owner(self.folder)
        if not (self.folder / _PARTS).exists():
            self._replace(self.folder / _PARTS, self.fingerprint.parts, b"")
        self._replace(path, header, payload)

    def _replace(self, path: Path, header: Mapping[str, Any], payload: bytes) -> None:
        rest = json.dumps(header).encode() + b"\n"
        length, rest = len(rest), rest + payload
        handle, unfinished = tempfile.mkstemp(prefix=".", suffix=_UNFINISHED, dir=self.folder)  # mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(b"%s %d %d %s\n" % (_FORMAT, length, len(payload), _checksum(rest)))
                file.write(rest)
            os.replace(unfinished, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
            raise


def _cost_of(header: Mapping[str, Any]) -> Cost:
    """What a program's file says that it took; a file may say nothing."""
    found = {name: header.get(name) for name in ("traced", "compiled")}
    return Cost(**{name: float(each) for name, each in found.items() if isinstance(each, int | float) and each >= 0})


def prune(root: Path, *, max_age_s: float, max_bytes: int, keep: Collection[str] = ()) -> list[str]:
    """Remove bundles that have not been used for long, and of the others the least recently used, until the rest fits.

    Args:
        root: the folder of all bundles.
        max_age_s: seconds since a bundle was last written or loaded from.
        max_bytes: of all bundles together.
        keep: digests of fingerprints that stay in any case.

    Returns:
        The digests of those that were removed.
    """
    now, found = time.time(), []
    for folder in _bundles(root):
        with contextlib.suppress(OSError):  # another process removes it too, or it isn't ours
            for unfinished in folder.glob(f".*{_UNFINISHED}"):
                if now - unfinished.stat().st_mtime > _SOON_S:
                    unfinished.unlink()
            files = [path.stat() for path in folder.iterdir()]
            used = max((file.st_mtime for file in files), default=folder.stat().st_mtime)
            found.append((used, sum(file.st_size for file in files), folder))
    total, removed = sum(size for _, size, _ in found), []
    for used, size, folder in sorted(found):
        if folder.name in keep or (now - used <= max_age_s and total <= max_bytes):
            continue
        with contextlib.suppress(OSError):
            folder.rename(root / f"{_REMOVED}{folder.name}-{os.getpid()}")  # whole or gone, for those who look
            removed.append(folder.name)
            total -= size
    for folder in root.glob(f"{_REMOVED}*"):
        shutil.rmtree(folder, ignore_errors=True)
    return removed


def _bundles(root: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [path for path in root.iterdir() if _DIGEST.fullmatch(path.name)]
    return []


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    """A file's header and payload.

    Raises:
        Unusable: it is damaged, or others can write it.
        OSError: it can't be opened.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        _check_status(os.fstat(file.fileno()), "its file")
        content = file.read()
    line = _FIRST_LINE.match(content)
    if line is None:
        raise Unusable("its file is damaged: it does not begin as it should")
    if line[1] != _FORMAT:
        raise Unusable(f"its file has the format {line[1].decode(errors='replace')}, this app reads {_FORMAT.decode()}")
    rest, middle = memoryview(content)[line.end() :], int(line[2])
    if len(rest) != middle + int(line[3]):
        raise Unusable(f"its file is damaged: {len(rest)} bytes instead of {middle + int(line[3])}")
    if _checksum(rest) != line[4]:
        raise Unusable("its file is damaged: the checksum is wrong")
    return json.loads(bytes(rest[:middle])), bytes(rest[middle:])


def _checksum(content: bytes | memoryview) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _check_owner(folder: Path) -> None:
    status = folder.lstat()  # a link could be changed to lead to another user's
    if not stat.S_ISDIR(status.st_mode):
        raise Unusable(f"{folder} is no folder")
    _check_status(status, str(folder))


def _check_status(status: os.stat_result, what: str) -> None:
    if status.st_uid not in (os.geteuid(), 0):  # root can do everything anyway: what it put into an image is fine
        raise Unusable(f"{what} belongs to another user, who could have put any code there")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Unusable(f"{what} can be written by other users (mode {stat.S_IMODE(status.st_mode):o})")
