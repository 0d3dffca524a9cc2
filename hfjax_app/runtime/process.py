"""Process-wide settings before jax starts: the allocator (on a CPU), the other hosts (of a TPU slice), the compile
cache; and the thresholds of Python's garbage collector.

`JAX_PLATFORMS` remains jax's own setting; only a libtpu without a TPU is disabled.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import hashlib
import importlib.metadata
import importlib.util
import logging
import math
import os
import platform
import re
import tempfile
import threading
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from hfjax_app.errors import ModelUnavailable, RequestRejected, first_line
from hfjax_app.runtime import compile_cache

_log = logging.getLogger(__name__)


# Thresholds of the garbage collector: allocations minus deallocations of container objects, and how many collections
# of one generation precede one of the next. Python's default is 700, 10, 10.
_SELDOM = (50_000, 20, 100)
_often = gc.get_threshold()

_preparing = threading.Lock()  # the settings are process-wide, and applied once


def runs_on_cpu() -> bool:
    """Whether jax will use the CPU, decided without starting jax: JAX_PLATFORMS says so, or there is no accelerator."""
    if platforms := os.environ.get("JAX_PLATFORMS"):
        return platforms.split(",")[0] == "cpu"
    return not has_tpu() and not importlib.metadata.entry_points(group="jax_plugins")


def has_tpu() -> bool:
    """Whether this host has TPU chips and their library, decided without starting jax."""
    chips = [*Path("/dev").glob("accel*"), *Path("/dev").glob("vfio/[0-9]*")]
    return importlib.util.find_spec("libtpu") is not None and bool(chips)


# What brings the devices of a platform of jax.
_PLUGINS = {"tpu": "jax[tpu]", "cuda": "jax[cuda13]", "gpu": "jax[cuda13]", "rocm": "jax[rocm7-local]"}


def _check_devices() -> None:
    """Start jax's devices, where they are to be no CPU.

    jax turns to the CPU without a word where a TPU can't be used, which would be hundreds of times slower.

    Raises:
        ModelUnavailable: jax has none of the devices that the machine has, or that JAX_PLATFORMS names.
    """
    import jax

    wanted = os.environ.get("JAX_PLATFORMS", "").split(",")[0]
    if wanted in _PLUGINS and not _has_plugin(wanted):
        needs = f"pip install '{_PLUGINS[wanted]}=={jax.__version__}'"
        raise ModelUnavailable(f"JAX_PLATFORMS = {wanted!r}: jax has no such devices without its plugin: {needs}")
    try:
        found = jax.default_backend()
    except (RuntimeError, AssertionError) as error:  # the latter where no platform of this name is known
        if not has_tpu():
            raise ModelUnavailable(
                f"JAX_PLATFORMS = {wanted!r}: jax has no such devices: {first_line(error)}"
            ) from error
        found = ""
    if found in ("", "cpu") and has_tpu():
        holder = _held_by() or "another process may hold them, or this libtpu can't use them"
        raise ModelUnavailable(
            f"this machine has TPU chips and jax finds none: {holder}; JAX_PLATFORMS=cpu serves from the CPU instead"
        )


def _has_plugin(platform: str) -> bool:
    if platform == "tpu":
        return importlib.util.find_spec("libtpu") is not None
    names = " ".join(entry.name for entry in importlib.metadata.entry_points(group="jax_plugins"))
    return ("cuda" if platform == "gpu" else platform) in names


def _held_by(processes: Path = Path("/proc")) -> str:
    """A sentence with the process that holds the TPU chips; empty if this user can see none."""
    for files in processes.glob("[0-9]*/fd"):
        number = files.parent.name
        with contextlib.suppress(OSError):  # of another user, or it has ended
            held = {os.readlink(file) for file in files.iterdir()}
            if number != str(os.getpid()) and any(re.fullmatch(r"/dev/(accel\d+|vfio/\d+)", path) for path in held):
                name = (files.parent / "comm").read_text(errors="replace").strip()
                return f"process {number} ({name}) holds them: end it first"
    return ""


def _has_libtpu_only() -> bool:
    """Whether libtpu is installed, as for plans, and there is no PCI device of its vendor, Google."""
    vendors = (path.read_text().strip() for path in Path("/sys/bus/pci/devices").glob("*/vendor"))
    return importlib.util.find_spec("libtpu") is not None and "0x1ae0" not in vendors


def _has_gpu_kernels() -> bool:
    """Whether XLA has caches of its own beside jax's.

    Their folder is then part of every entry's key, so a copy of the cache in another folder does not match.
    """
    return not runs_on_cpu() and not has_tpu()


def collect_seldom() -> None:
    """Collect garbage seldom while nearly all new objects stay alive: modules, models, programs.

    With the default thresholds the collector traverses a million objects repeatedly during the start, a tenth of its
    processor time, and once more before the process ends, for more than a second.
    """
    gc.set_threshold(*_SELDOM)
    atexit.register(gc.freeze)


def freeze_objects() -> None:
    """Exclude all present objects from garbage collection, and restore Python's default thresholds.

    Called when everything is warm: a full collection stopped all threads, and so every stream, for a second.
    """
    gc.collect()  # present garbage would be frozen too, with all objects that it refers to
    gc.freeze()
    gc.set_threshold(*_often)


def collect_removed() -> None:
    """Free the objects of a removed model, including those that `freeze_objects` excluded from collection."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def default_cache_folder() -> Path:
    """The user's cache folder for compiled programs, one per kind of CPU.

    XLA's CPU code uses the instructions of the machine that compiled it; a home folder that two kinds of machines share
    must not mix them. A user without a home, as containers have them, gets a folder of his own beside temporary files.
    """
    try:
        home = Path.home()
    except RuntimeError:  # neither a variable nor an entry of the system says where
        home = Path(tempfile.gettempdir()) / f"hfjax-{os.getuid()}"
    root = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return root / "hfjax_app" / f"programs-{hashlib.sha256(features.encode()).hexdigest()[:12]}"


def _subfolder_of_jax_cache() -> Path | None:
    """A folder of our own in the folder of jax's setting; None if that is not set.

    Entries of other programs in that folder have no checksums, and would be removed.

    Raises:
        RequestRejected: jax's setting is not a folder.
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
        cache_folder: the folder of compiled programs. None: the folder of an earlier call, else a subfolder of jax's
            setting (JAX_COMPILATION_CACHE_DIR), else `default_cache_folder()`.

    Raises:
        ModelUnavailable: the slice has several hosts, and they could not be joined; or there are no devices of the kind
            that this machine has, or JAX_PLATFORMS names.
        RequestRejected: jax's setting is not a folder.
    """
    with _preparing:
        if runs_on_cpu():
            keep_freed_memory()
        import jax  # not earlier: the allocator must be set before jax creates its thread pools

        if has_tpu() and not runs_on_cpu():
            join_hosts()
        chosen = jax.config.jax_platforms  # type: ignore[attr-defined]
        if not chosen and runs_on_cpu() and _has_libtpu_only():
            jax.config.update("jax_platforms", "cpu")  # jax would try libtpu, which prints that it finds no TPU
        if not runs_on_cpu():
            _check_devices()
        if cache_folder is None and _use_cache_folder.cache_info().currsize:
            return  # an earlier call chose the folder
        _use_cache_folder(cache_folder or _subfolder_of_jax_cache() or default_cache_folder())


def cache_folder() -> Path | None:
    """The folder of compiled programs that `prepare` chose; None where they are not kept."""
    import jax

    folder = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    return Path(folder) if folder else None


def keep_compiled() -> None:
    """Write the checksums of all cache entries so far; a process that is killed later does not write them."""
    if folder := cache_folder():
        compile_cache.seal(folder)


@functools.cache
def _use_cache_folder(folder: Path) -> None:
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    jax.config.update("jax_compilation_cache_dir", str(folder))
    compilation_cache.reset_cache()  # jax keeps the folder of the first compilation in this process
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    if not _has_gpu_kernels():
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    if compile_cache.open_folder(folder):
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        atexit.register(compile_cache.seal, folder)
    else:  # read only; jax would warn about every entry that it can't write
        jax.config.update("jax_persistent_cache_min_compile_time_secs", math.inf)
        jax.config.update("jax_enable_compilation_cache", folder.is_dir())
        _log.warning(
            "the folder of compiled programs can't be written, so new ones are not kept: %s (HFJAX_CACHE_DIR names it)",
            folder,
        )


# mallopt's parameter numbers, from glibc's <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8

# Few, because each arena keeps its freed blocks; but XLA's compiler allocates in many threads, and with one arena for
# all of them it takes a third longer.
_ARENAS_PER_CORE = 2


def keep_freed_memory() -> None:
    """Make glibc keep large freed blocks instead of returning them to the kernel.

    XLA on a CPU allocates every temporary with malloc on every call. By default glibc maps and unmaps large blocks, and
    the page faults cost more than the arithmetic. The settings affect later allocations only. Outside the main thread
    blocks of 64 MiB and more, as for large pictures, are still mapped: an arena there holds no larger ones. With
    GLIBC_TUNABLES=glibc.malloc.hugetlb=1 in the environment such a fault maps 2 MiB, where Linux offers huge pages on
    request; a running process can't set that. Does nothing where the C library has no mallopt (musl, macOS).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, _ARENAS_PER_CORE * (os.cpu_count() or 1))
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


_VARIABLES = ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES")
_METADATA = "/computeMetadata/v1/instance/attributes/worker-network-endpoints"
_METADATA_S = 2.0  # the server is on the same machine, and the start must not wait long where there is none
_MAX_BYTES = 1 << 20


def hosts_of_slice(environment: Mapping[str, str] = os.environ) -> int:
    """The number of hosts of this TPU slice; 1 if the environment does not say.

    Read as jax's own detection does: variables (GKE, or set by hand), else a TPU VM's metadata.
    """
    for name in _VARIABLES:
        if workers := environment.get(name):
            return _count(workers)
    if "TPU_SKIP_MDS_QUERY" in environment:
        return 1
    server = environment.get("GCE_METADATA_IP", "metadata.google.internal")
    request = urllib.request.Request(f"http://{server}{_METADATA}", headers={"Metadata-Flavor": "Google"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=_METADATA_S) as reply:
            return _count(reply.read(_MAX_BYTES).decode("utf-8", "replace"))
    except OSError:
        return 1


def _count(workers: str) -> int:
    return max(1, sum(bool(worker.strip()) for worker in workers.split(",")))


@functools.cache
def join_hosts() -> None:
    """Connect jax on all hosts of the slice; does nothing on a single host. Call it before jax has devices.

    If other hosts do not join within five minutes, jax ends the process.

    Raises:
        ModelUnavailable: jax could not start to connect.
    """
    count = hosts_of_slice()
    if count == 1:
        return
    import jax

    if jax.distributed.is_initialized():
        return
    try:
        jax.distributed.initialize()
    except (RuntimeError, ValueError, OSError) as error:
        raise ModelUnavailable(
            f"this TPU slice has {count} hosts, and they have not met: start the same command on all of them ({error})"
        ) from error
