"""The chips that can be planned for, and their devices for the compiler: libtpu compiles without a TPU.

The figures are the vendor's: https://cloud.google.com/tpu/docs/v5e and .../v6e. Does not cover the devices of this
machine: `runtime/mesh.py` does.
"""

import importlib.util
import os
import re
from dataclasses import dataclass
from typing import Any

from hfjax_app.errors import ModelUnavailable, RequestRejected, first_line


@dataclass(frozen=True, kw_only=True)
class Chip:
    """The figures of a chip that plans use."""

    hbm: int  # bytes
    bandwidth: float  # bytes per second of HBM

    @property
    def usable(self) -> int:
        """Bytes for arrays and temporary memory: the HBM minus the margin."""
        return int(self.hbm * (1 - MARGIN))


LIBTPU = "0.0.42.1"  # the version that the pinned jax requires
CHIPS = {"v5e": Chip(hbm=16 << 30, bandwidth=819e9), "v6e": Chip(hbm=32 << 30, bandwidth=1640e9)}
SHAPES = {"v5e": ("1x1", "2x2", "2x4"), "v6e": ("1x1", "2x2")}
NAMES = tuple(f"{chip}:{shape}" for chip, shapes in SHAPES.items() for shape in shapes)
MARGIN = 0.06  # of the HBM: the runtime's own buffers, the programs' code, and gaps between arrays
MAX_CPUS = 64

# Values that libtpu would otherwise request from a TPU VM.
_NO_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # it only compiles, so several plans may run at the same time
}


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Chips that work together: "v5e:2x2", or "cpu:N" for simulated devices.

    `usable` is the chip's; None for a CPU.
    """

    name: str
    devices: int
    chip: Chip | None

    @property
    def usable(self) -> int | None:
        return None if self.chip is None else self.chip.usable


def parse(name: str) -> Topology:
    """A topology by its name.

    Raises:
        RequestRejected: an unknown name; the message lists the known ones.
    """
    if match := re.fullmatch(r"cpu:(\d{1,4})", name, re.ASCII):
        if not 1 <= int(match[1]) <= MAX_CPUS:
            raise RequestRejected(f"topology = {name!r}: 1 to {MAX_CPUS} CPU devices can be simulated")
        return Topology(name=name, devices=int(match[1]), chip=None)
    if name not in NAMES:
        raise RequestRejected(f"topology = {name!r}: known are {', '.join(NAMES)} and cpu:N")
    rows, columns = map(int, name.partition(":")[2].split("x"))
    return Topology(name=name, devices=rows * columns, chip=CHIPS[name.partition(":")[0]])


def topology_here() -> str | None:
    """The name of this process's TPUs as a topology; None where they are CPUs or GPUs, or are not known here.

    For a process that compiles for these TPUs without using them, while this one holds them.
    """
    import jax

    devices = jax.local_devices()
    if devices[0].platform != "tpu":
        return None
    chip = {"TPU v5 lite": "v5e", "TPU v6 lite": "v6e"}.get(devices[0].device_kind)
    return next((name for name in NAMES if name.startswith(f"{chip}:") and parse(name).devices == len(devices)), None)


def prepare_process(topology: Topology) -> None:
    """Set the environment before jax starts: no real accelerator, and the topology's number of simulated devices."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # programs for absent devices can be written, not read
    if topology.chip is None:
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={topology.devices}".strip()
    else:
        os.environ |= _NO_TPU
        # jax adds it on a TPU VM, and a program compiled here must equal one compiled there.
        arguments = os.environ.get("LIBTPU_INIT_ARGS", "")
        if "--xla_tpu_use_enhanced_launch_barrier" not in arguments:
            os.environ["LIBTPU_INIT_ARGS"] = f"{arguments} --xla_tpu_use_enhanced_launch_barrier=true".strip()


def devices(topology: Topology) -> list[Any]:
    """The topology's devices, for which jax compiles; TPUs in the list can't run programs.

    Raises:
        ModelUnavailable: the TPU's compiler is not installed, or this process has fewer simulated devices.
    """
    import jax
    from jax.experimental import topologies

    if topology.chip is None:
        found = jax.devices("cpu")
        if len(found) < topology.devices:
            raise ModelUnavailable(f"topology {topology.name}: this process was started with {len(found)} CPU devices")
        return found[: topology.devices]
    if importlib.util.find_spec("libtpu") is None:
        raise ModelUnavailable(
            f"topology {topology.name} needs the TPU's compiler, which is not installed: pip install libtpu=="
            f"{LIBTPU} (Linux on x86-64; no TPU is needed), or plan for cpu:{topology.devices}"
        )
    options = {"chips_per_host_bounds": [1, 1, 1]} if topology.devices == 1 else {}
    try:
        return list(topologies.get_topology_desc(platform="tpu", topology_name=topology.name, **options).devices)
    except Exception as error:
        raise ModelUnavailable(f"topology {topology.name}: libtpu can't describe it: {first_line(error)}") from error
