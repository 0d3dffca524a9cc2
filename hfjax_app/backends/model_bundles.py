"""The bundle of each kind of model, by the settings that its programs depend on."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from hfjax_app.embedded import resolve
from hfjax_app.runtime.bundle import Bundle
from hfjax_app.runtime.checkpoints.bundles import bundle_of
from hfjax_app.runtime.mesh import PAIR
from hfjax_app.settings import Settings

_DEPENDS_ON = {
    "chat": ("slots", "context", "dtype", "quantize"),
    "sentiment": (),
    "images": ("dtype",),
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
    used = {"chat": found, "sentiment": found[:1], "images": found[:PAIR]}[kind]
    source: str | os.PathLike[str] = resolve(model)
    if kind == "images":
        from hfjax_app.images.single_file import SingleFile, single_file

        file = single_file(source)
        source = source if file is None else SingleFile(file).configs  # programs depend on configs, not on weights
    return bundle_of(kind, source, facts, used, root=root)
