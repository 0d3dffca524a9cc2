"""The bundle of each kind of model, by the settings that its programs depend on, and programs compiled into it ahead:
without weights, for devices that are here or not.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from hfjax_app.backends.backend import KINDS
from hfjax_app.backends.budget import planner_for
from hfjax_app.embedded import resolve
from hfjax_app.errors import ModelUnavailable
from hfjax_app.images.single_file import SingleFile, single_file
from hfjax_app.runtime.bundle import Bundle, prune
from hfjax_app.runtime.checkpoints.hub import fetch
from hfjax_app.runtime.checkpoints.lora import base_of
from hfjax_app.runtime.fingerprint import Fingerprint
from hfjax_app.runtime.process import cache_folder
from hfjax_app.runtime.program_report import ProgramReport
from hfjax_app.runtime.programs import Programs
from hfjax_app.settings import Settings

_CONFIGS = (".json", ".jinja", ".txt", ".model")  # what `fetch` brings before any weights
_MOST_AGE_S = 60 * 24 * 3600
_MOST_BYTES = 8 << 30


def bundle_of(
    kind: str,
    source: str | os.PathLike[str],
    settings: Mapping[str, Any],
    devices: Sequence[Any] | None = None,
    *,
    root: Path | None = None,
) -> Bundle | None:
    """The bundle of a checkpoint.

    Programs take from outside of their arguments what configs, tokenizers and schedulers say, so each of these files
    counts; weights are arguments, and don't.

    Args:
        kind: "chat", "sentiment" or "images".
        source: a folder or a hub id.
        settings: what else the programs depend on, as JSON data.
        devices: that they are compiled for; None: all of this process.
        root: the folder of all bundles; None: beside jax's compile cache.

    Returns:
        The bundle; None where compiled programs are not kept.
    """
    if (root := root or _root()) is None:
        return None
    files = _digests(fetch(source, weights=False))
    if base := base_of(source):  # an adapter's
        files |= {f"base/{path}": digest for path, digest in _digests(fetch(base, weights=False)).items()}
    facts = {"kind": kind, "settings": dict(settings), "files": files}
    return Bundle(root, Fingerprint.of(facts, devices))


def prune_bundles() -> None:
    """Remove bundles that were not used for two months, and the least recently used beyond 8 GiB."""
    if (root := _root()) is not None:
        prune(root, max_age_s=_MOST_AGE_S, max_bytes=_MOST_BYTES)


def _root() -> Path | None:
    folder = cache_folder()
    return folder / "bundles" if folder else None


def _digests(folder: Path) -> dict[str, str]:
    """sha256 of each file of the checkpoint and of a pipeline's parts, by its path."""
    paths = sorted([*folder.glob("*"), *folder.glob("*/*")])
    files = (path for path in paths if path.is_file() and path.suffix in _CONFIGS)
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


_DEPENDS_ON = {
    "chat": ("slots", "context", "dtype", "quantize"),
    "sentiment": (),
    "images": ("dtype", "image_quantize", "image_text_encoders"),
}


def model_bundle(
    kind: str,
    model: str,
    settings: Settings,
    *,
    devices: Sequence[Any] | None = None,
    root: Path | None = None,
) -> Bundle | None:
    """The bundle of a model's programs; None where compiled programs are not kept.

    Args:
        kind: "chat", "sentiment" or "images".
        model: an embedded model's name, a folder, or a hub id.
        settings: of the app.
        devices: that are there, also a topology's; None: all of this process. Those that serve this kind are taken.
        root: the folder of all bundles; None: beside jax's compile cache.

    Raises:
        ModelUnavailable: there is no such model.
    """
    facts = {name: getattr(settings, name) for name in _DEPENDS_ON[kind]}
    found = list(jax.local_devices() if devices is None else devices)
    used = found[:1] if kind == "sentiment" else found  # pictures take two, or all if they are too large for one
    source: str | os.PathLike[str] = resolve(model)
    if kind == "images":
        file = single_file(source)
        source = source if file is None else SingleFile(file).configs  # programs depend on configs, not on weights
    return bundle_of(kind, source, facts, used, root=root)


_KINDS = {flag: kind for kind, flag in KINDS.items()}


def compile_ahead(
    models: Sequence[tuple[str, str]],
    settings: Settings,
    devices: Sequence[Any],
    *,
    root: Path | None = None,
    on_kept: Callable[[str, str, ProgramReport], None] = lambda kind, model, report: None,
) -> int:
    """Compile every program that the app would use and that is not in its model's bundle.

    Args:
        models: each one's kind, "chat", "image" or "sentiment", and its name.
        settings: of the app that will serve them.
        devices: all of its devices, those of this process or a topology's.
        root: the folder of all bundles; None: beside jax's compile cache.
        on_kept: called with kind, model and the report of each program once it is in the bundle.

    Returns:
        How many programs the bundles have for these models now.

    Raises:
        ModelUnavailable: a model can't be loaded, its programs can't be compiled, or bundles can't be kept; says why.
    """
    count = 0
    for kind, model in models:
        planner = planner_for(kind, model, settings, devices[0].platform, len(devices))
        bundle = model_bundle(_KINDS[kind], model, settings, devices=devices, root=root)
        if bundle is None:
            raise ModelUnavailable("compiled programs are not kept here: jax has no folder for them")
        programs = Programs(mesh=planner.mesh(devices), planned=True, bundle=bundle)
        specs = planner.specs(programs)
        for report in programs.reports:  # of text encoders, which are compiled to know what the others take
            if not report.cached:
                on_kept(_KINDS[kind], model, report)
        for spec in specs:
            if programs.is_kept(spec.name, *spec.args, **spec.options):
                continue
            programs.compile(spec.name, spec.function, *spec.args, **spec.options)
            if reason := bundle.reasons.get(spec.name):
                raise ModelUnavailable(f"{spec.name} is compiled, but {reason}")
            on_kept(_KINDS[kind], model, programs.reports[-1])
        count += len(bundle.names())
    return count
