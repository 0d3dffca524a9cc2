"""Checks that a model can run and fits, and downloads it, in a process of its own (`hfjax fetch`).

A config may be large, wrong or hostile, and a download long: the process that serves only reads the lines that this one
writes, and can end it.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub import constants

from hfjax_app.backends.budget import bytes_on_first, in_bytes, no_room, planner_for
from hfjax_app.embedded import resolve
from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime.checkpoints.hub import OnBytes, is_gated
from hfjax_app.settings import Settings


def fetch_model(
    kind: str,
    model: str,
    settings: Settings,
    *,
    platform: str = "cpu",
    devices: int = 1,
    free: int | None = None,
    on_checked: Callable[[dict[str, Any]], None] = lambda found: None,
    on_bytes: OnBytes | None = None,
) -> None:
    """Check a model, and download what is not here.

    Args:
        kind: "chat", "image" or "sentiment".
        model: an embedded model's name, a folder, or a hub id.
        settings: of the app that will serve it.
        platform, devices: what it will be served on, see `planner_for`.
        free: bytes that the fullest device has left; None: unknown.
        on_checked: called before the download, with the architecture, the bytes that it needs on the first device, the
            bytes of the download, and whether it is gated (None: unknown).
        on_bytes: see `hub.fetch`.

    Raises:
        ModelUnavailable: it can't run, does not fit the memory or the disk, or can't be downloaded; says why.
    """
    planner = planner_for(kind, model, settings, platform, devices)
    needed = bytes_on_first(planner, devices, free)
    if (reason := no_room(kind, model, needed, free)) is not None:
        raise ModelUnavailable(reason)
    download = planner.missing_bytes()
    if download and download > (room := shutil.disk_usage(_existing(Path(constants.HF_HUB_CACHE))).free):
        raise ModelUnavailable(
            f"model {model!r}: its download has {in_bytes(download)}, and the disk has {in_bytes(room)} left for "
            f"{constants.HF_HUB_CACHE}: make room there, or set HF_HOME to a folder on another disk"
        )
    gated = is_gated(resolve(model))
    architecture = planner.facts.architecture
    on_checked({"architecture": architecture, "bytes": needed, "download": download, "gated": gated})
    planner.fetch(on_bytes)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())
