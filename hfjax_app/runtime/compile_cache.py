"""The folder of compiled programs: jax's persistent cache, with a checksum beside each entry.

jax never replaces an entry that it can't read: it warns and compiles again at every start. A damaged entry that still
decompresses would run as machine code. So each entry gets a checksum after it is written, and an entry that does not
match its checksum is removed before jax reads the folder. The folder may grow, and may be deleted at any time.
"""

import contextlib
import fcntl
import hashlib
import os
from pathlib import Path

from hfjax_app.runtime.seams.jax import CACHE_ENTRY

_SEAL = ".sha256"
_USERS = ".users"  # locked by every process that uses the folder, for as long as it lives
_locks: dict[Path, int] = {}  # file descriptors, never closed


def open_folder(folder: Path) -> bool:
    """Make the folder and remove entries that are damaged or were never sealed (a process ended while writing).

    Where another process uses the folder, entries without a seal stay: it may be writing them.

    Returns:
        Whether entries can be written there.
    """
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        return False
    is_alone = _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for entry in folder.glob(CACHE_ENTRY):
        with contextlib.suppress(OSError):  # another process is removing it too, or it isn't ours to remove
            if (is_alone or _seal_of(entry).exists()) and not _is_sealed(entry):
                _seal_of(entry).unlink(missing_ok=True)
                entry.unlink()
    _lock(folder, fcntl.LOCK_SH)
    return True


def _lock(folder: Path, how: int) -> bool:
    """Lock the folder's file for as long as this process lives, or change its lock; False if another one has it."""
    try:
        if folder not in _locks:
            _locks[folder] = os.open(folder / _USERS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        fcntl.flock(_locks[folder], how)
    except OSError:
        return False
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
