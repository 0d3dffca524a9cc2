"""Which bundle belongs to a checkpoint that is served with some settings: by its configs and tokenizers."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hfjax_app.runtime.bundle import Bundle, prune
from hfjax_app.runtime.checkpoints.hub import fetch
from hfjax_app.runtime.checkpoints.lora import base_of
from hfjax_app.runtime.fingerprint import Fingerprint
from hfjax_app.runtime.process import cache_folder

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
