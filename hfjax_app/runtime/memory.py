"""Memory of the devices: what a model that serves holds, what is in use, and what is left for one more model."""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp

HOST = "pinned_host"  # jax's name of the host's memory from which a program copies by itself


@dataclass(frozen=True, kw_only=True)
class HeldMemory:
    """Bytes on each device.

    Attributes:
        weights: with buffers.
        cache: of keys and values, or states; 0 for models without one.
    """

    weights: int
    cache: int = 0


def bytes_of(trees: Iterable[object]) -> int:
    """Bytes of all arrays in these pytrees on each device."""
    return sum(held_bytes(leaf) for tree in trees for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array))


def host_bytes_of(trees: Iterable[object]) -> int:
    """Bytes of the arrays in these pytrees that lie in the host's memory, of each device."""
    leaves = (leaf for tree in trees for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array))
    return sum(held_numbers(leaf) * leaf.dtype.itemsize for leaf in leaves if is_on_host(leaf))


def held_numbers(array: jax.Array | jax.ShapeDtypeStruct) -> int:
    """Numbers of an array on each device."""
    return math.prod(array.shape if array.sharding is None else array.sharding.shard_shape(array.shape))


def held_bytes(array: jax.Array | jax.ShapeDtypeStruct) -> int:
    """Bytes of an array on each device; 0 where it lies in the host's memory."""
    return 0 if is_on_host(array) else held_numbers(array) * int(jnp.dtype(array.dtype).itemsize)


def is_on_host(array: jax.Array | jax.ShapeDtypeStruct) -> bool:
    """Whether an array lies in the host's memory, from which programs copy it to the device."""
    return getattr(array.sharding, "memory_kind", None) == HOST


_MEMINFO = Path("/proc/meminfo")
_OF_PROCESS = Path("/proc/self/statm")  # in pages; the second number is the resident set
_CONTAINER = Path("/sys/fs/cgroup")  # of control groups, version 2


def free_memory() -> int | None:
    """Bytes that the fullest local device has left for arrays; None if unknown.

    CPU devices share what the host has available, or the container where that has less.
    """
    devices = jax.local_devices()
    if devices[0].platform == "cpu":
        found = [free for free in (_of_host(), _of_container()) if free is not None]
        return min(found, default=None)
    stats = [device.memory_stats() or {} for device in devices]
    if any("bytes_limit" not in stat for stat in stats):
        return None
    return min(int(stat["bytes_limit"]) - int(stat.get("bytes_in_use", 0)) for stat in stats)


def used_memory() -> tuple[int | None, int | None]:
    """Bytes in use and there: of the fullest local device, or of this process and its host on a CPU; None: unknown."""
    devices = jax.local_devices()
    if devices[0].platform == "cpu":
        page = os.sysconf("SC_PAGE_SIZE")
        try:
            used = int(_OF_PROCESS.read_text().split()[1]) * page
        except (OSError, ValueError, IndexError):  # another system than Linux
            return None, None
        return used, os.sysconf("SC_PHYS_PAGES") * page
    fullest = max((device.memory_stats() or {} for device in devices), key=lambda stat: stat.get("bytes_in_use", 0))
    return fullest.get("bytes_in_use"), fullest.get("bytes_limit")


def _of_host() -> int | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):  # another system than Linux
        return None


def _of_container() -> int | None:
    try:
        limit = int((_CONTAINER / "memory.max").read_text())  # "max" where there is none
        used = int((_CONTAINER / "memory.current").read_text())
        stat = dict(line.split() for line in (_CONTAINER / "memory.stat").read_text().splitlines())
        return limit - used + int(stat.get("inactive_file", 0))  # which the kernel gives back
    except (OSError, ValueError):
        return None
