"""What must be set before jax starts: the allocator (on CPU), the other hosts (of a TPU slice), the compile cache; and
when Python looks for garbage.

Does not choose models; `JAX_PLATFORMS` stays jax's own setting. Only a libtpu without a TPU is kept from jax.
"""

import atexit
import functools
import gc
import hashlib
import importlib.metadata
import importlib.util
import logging
import math
import os
import platform
import threading
from pathlib import Path

from hfjax_app.errors import RequestRejected
from hfjax_app.runtime import compile_cache
from hfjax_app.runtime.cpu.allocator import keep_freed_memory
from hfjax_app.runtime.tpu import hosts

_log = logging.getLogger(__name__)


# Python's collector: container objects more than were freed, and how many collections of one generation come before
# one of the next. Its own setting is 700, 10, 10.
_SELDOM = (50_000, 20, 100)
_often = gc.get_threshold()

_preparing = threading.Lock()  # what is prepared is the process's, and only once


def runs_on_cpu() -> bool:
    """Whether jax will take the CPU, decided without starting it: it was asked to, or there is nothing else here."""
    if platforms := os.environ.get("JAX_PLATFORMS"):
        return platforms.split(",")[0] == "cpu"
    return not has_tpu() and not importlib.metadata.entry_points(group="jax_plugins")


def has_tpu() -> bool:
    """Whether this host has TPU chips and their library, decided without starting jax."""
    chips = [*Path("/dev").glob("accel*"), *Path("/dev").glob("vfio/[0-9]*")]
    return importlib.util.find_spec("libtpu") is not None and bool(chips)


def _has_libtpu_only() -> bool:
    """Whether libtpu is here, as for plans, and no PCI device of its maker, Google."""
    vendors = (path.read_text().strip() for path in Path("/sys/bus/pci/devices").glob("*/vendor"))
    return importlib.util.find_spec("libtpu") is not None and "0x1ae0" not in vendors


def _has_gpu_kernels() -> bool:
    """Whether XLA has caches of its own to keep beside jax's. Their folder is then part of every entry's key, so that
    a copy of the cache in another folder, or on another machine, is of no use."""
    return not runs_on_cpu() and not has_tpu()


def collect_seldom() -> None:
    """Let Python look for garbage seldom, as long as nearly all that it would walk stays: modules, models, programs.

    By default it walks a million objects again and again while they are made, a tenth of a start's processor time; and
    once more before the process ends, for more than a second.
    """
    gc.set_threshold(*_SELDOM)
    atexit.register(gc.freeze)


def freeze_objects() -> None:
    """Never walk again what there is by now, and look for garbage as often as Python does by default.

    For when everything is warm: a full collection held up all threads, and with them every stream, for a second.
    """
    gc.collect()  # what is garbage now would stay, and all that it refers to
    gc.freeze()
    gc.set_threshold(*_often)


def collect_removed() -> None:
    """Free what a removed model was made of: also what `freeze_objects` keeps out of the collector's sight."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def default_cache_folder() -> Path:
    """The user's cache folder for compiled programs, one per kind of CPU.

    XLA's compiled CPU code uses the instructions of the machine that compiled it; a home folder shared by two kinds of
    machines must not mix them.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return root / "hfjax_app" / f"programs-{hashlib.sha256(features.encode()).hexdigest()[:12]}"


def _folder_beside_others() -> Path | None:
    """Our own part of the folder where jax's setting has other programs keep theirs; None where nothing is set.

    Theirs have no seals, and would be removed.

    Raises:
        RequestRejected: jax's setting is no folder.
    """
    import jax

    shared = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if shared and "://" in shared:
        raise RequestRejected(
            f"JAX_COMPILATION_CACHE_DIR = {shared!r}: compiled programs are kept in a folder of this machine; "
            "HFJAX_CACHE_DIR can name one"
        )
    return Path(shared) / "hfjax_app" if shared else None


def prepare(cache_folder: Path | None = None) -> None:
    """Apply the allocator settings (on CPU), join the hosts of a TPU slice, and turn the persistent compile cache on.

    Calling it again is cheap, and a second thread waits for the first.

    Args:
        cache_folder: where compiled programs are kept. None: where an earlier call put it, else a folder of our own in
            that of jax's setting (JAX_COMPILATION_CACHE_DIR), else `default_cache_folder()`.

    Raises:
        ModelUnavailable: the slice has several hosts, and the others were not there.
        RequestRejected: jax's setting is no folder.
    """
    with _preparing:
        if runs_on_cpu():
            keep_freed_memory()
        import jax  # only now: the allocator is set before jax and its thread pools exist

        if has_tpu() and not runs_on_cpu():
            hosts.join()
        chosen = jax.config.jax_platforms  # type: ignore[attr-defined]
        if not chosen and runs_on_cpu() and _has_libtpu_only():
            jax.config.update("jax_platforms", "cpu")  # jax would try libtpu, which prints that it finds no TPU
        if cache_folder is None and _use_cache_folder.cache_info().currsize:
            return  # an earlier call has chosen
        _use_cache_folder(cache_folder or _folder_beside_others() or default_cache_folder())


def keep_compiled() -> None:
    """Seal what jax has written to its cache so far; otherwise done when the process ends, unless it is killed."""
    import jax

    if folder := jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        compile_cache.seal(Path(folder))


@functools.cache
def _use_cache_folder(folder: Path) -> None:
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    jax.config.update("jax_compilation_cache_dir", str(folder))
    compilation_cache.reset_cache()  # whoever compiled before: jax holds on to the folder of that moment
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    if not _has_gpu_kernels():
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    if compile_cache.open_folder(folder):
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        atexit.register(compile_cache.seal, folder)
    else:  # read what is there; jax would warn about every entry that it can't write
        jax.config.update("jax_persistent_cache_min_compile_time_secs", math.inf)
        jax.config.update("jax_enable_compilation_cache", folder.is_dir())
        _log.warning("the folder of compiled programs can't be written, so new ones are not kept: %s", folder)
