"""The hardware of a benchmark, and its memory bandwidth: the floor of decoding."""

import os
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
import torch

GIB = 2**30


def let_torch_compile() -> None:
    """Make torch.compile work beside torchax; torch's contenders run on the CPU.

    torchax registers as torch's accelerator, and torch.compile then requests a stream from it, which it lacks.
    """
    torch.accelerator.is_available = lambda: False


def describe() -> dict[str, object]:
    """The machine and the versions that decide speed."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    packages = ("jax", "jaxlib", "torch", "torchax", "transformers")
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "devices": sorted({device.device_kind for device in jax.devices()}),
        "python": platform.python_version(),
        "malloc": os.environ.get("GLIBC_TUNABLES", ""),  # the Makefile's choice, for all contenders
        "load_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    } | {name: version(name) for name in packages}


class MemoryFloor:
    """Reads 1 GiB with one thread per core; decoding can't read memory faster.

    The sum of 64-bit integers is the cheapest operation that reads every byte.
    """

    def __init__(self, threads: int | None = None):
        self.threads = threads or os.cpu_count() or 1
        self._parts = np.array_split(np.ones(GIB // 8, np.int64), self.threads)
        self._pool = ThreadPoolExecutor(self.threads)

    def bytes_per_s(self) -> float:
        started = time.perf_counter()
        total = sum(self._pool.map(np.sum, self._parts))
        assert total == GIB // 8
        return GIB / (time.perf_counter() - started)
