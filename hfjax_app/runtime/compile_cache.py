"""The folder of compiled programs: jax's persistent cache, with a checksum beside each entry.

jax never replaces an entry that it can't read: it warns and compiles again at every start. A damaged entry that still
decompresses would run as machine code. So each entry gets a checksum after it is written, and an entry that does not
match its checksum is removed before jax reads the folder. Does not limit the folder's size; deleting it is always safe.
"""

import contextlib
import hashlib
import os
from pathlib import Path

from hfjax_app.runtime.seams.jax import CACHE_ENTRY

_SEAL = ".sha256"


def open_folder(folder: Path) -> bool:
    """Make the folder and remove entries that are damaged or were never sealed (a process ended while writing).

    Returns:
        Whether entries can be written there.
    """
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        return False
    for entry in folder.glob(CACHE_ENTRY):
        with contextlib.suppress(OSError):  # another process is removing it too, or it isn't ours to remove
            if not _is_sealed(entry):
                _seal_of(entry).unlink(missing_ok=True)
                entry.unlink()
    return True


def seal(folder: Path) -> None:
    """Write the checksum of each entry that has none yet. Where the folder can't be written, do nothing."""
    for entry in folder.glob(CACHE_ENTRY):
        with contextlib.suppress(OSError):
            if not _seal_of(entry).exists():
                _seal_of(entry).write_text(_checksum(entry))


def _seal_of(entry: Path) -> Path:
    return entry.with_name(entry.name + _SEAL)


def _is_sealed(entry: Path) -> bool:
    return _seal_of(entry).exists() and _seal_of(entry).read_text(errors="replace") == _checksum(entry)


def _checksum(entry: Path) -> str:
    return hashlib.sha256(entry.read_bytes()).hexdigest()
