"""Chips by name, those that are here or not, and their devices for the compiler: libtpu compiles without a TPU."""

import importlib.util
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hfjax_app.errors import ModelUnavailable, RequestRejected, first_line


@dataclass(frozen=True, kw_only=True)
class Chip:
    """The figures of a chip that plans use. `devices`: how many devices it shows, which share its memory and its units.

    `source`: the vendor's page with the figures; empty for the chips of this machine.
    """

    hbm: int  # bytes
    bandwidth: float  # bytes per second of HBM
    flops: float = 0.0  # bfloat16 operations per second
    devices: int = 1
    source: str = ""

    @property
    def usable(self) -> int:
        """Bytes of a device for arrays and temporary memory: its part of the HBM minus the margin."""
        return int(self.hbm * (1 - MARGIN)) // self.devices


# Bytes per second from the host's memory to a device: PCIe of 16 lanes of the third generation, which most TPUs have by
# https://jax-ml.github.io/scaling-book/tpus; v6e has twice that.
HOST_LINK = 16e9
LIBTPU = "0.0.42.1"  # the version that the pinned jax requires
_PAGES = "https://cloud.google.com/tpu/docs/"
CHIPS = {
    "v5e": Chip(hbm=16 << 30, bandwidth=819e9, flops=197e12, source=f"{_PAGES}v5e"),
    "v6e": Chip(hbm=32 << 30, bandwidth=1638e9, flops=918e12, source=f"{_PAGES}v6e"),
    "v4": Chip(hbm=32 << 30, bandwidth=1200e9, flops=275e12, devices=2, source=f"{_PAGES}v4"),
    "v5p": Chip(hbm=95 << 30, bandwidth=2765e9, flops=459e12, source=f"{_PAGES}v5p"),
    "tpu7x": Chip(hbm=192 << 30, bandwidth=7380e9, flops=2307e12, devices=2, source=f"{_PAGES}tpu7x"),
}
# Of one host each, the smaller ones first, by bytes of HBM, then by chips: without prices, this is the order of cost.
NAMES = ("v5e:1x1", "v6e:1x1", "v5e:2x2", "v4:2x2x1", "v6e:2x2", "v5e:2x4", "v6e:2x4", "v5p:2x2x1", "tpu7x:2x2x1")
# Names of the vendor's machine types. v4-8 and v5p-8 count cores, of which a chip has two.
VENDOR_NAMES = {
    "v5litepod-1": "v5e:1x1",
    "v5litepod-4": "v5e:2x2",
    "v5litepod-8": "v5e:2x4",
    "v6e-1": "v6e:1x1",
    "v6e-4": "v6e:2x2",
    "v6e-8": "v6e:2x4",
    "v4-8": "v4:2x2x1",
    "v5p-8": "v5p:2x2x1",
}
_KINDS = {"TPU v5 lite": "v5e", "TPU v6 lite": "v6e"}  # chips by jax's names of their devices
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

    Figures are those of one device; `usable` is None for a CPU.
    """

    name: str
    devices: int
    chip: Chip | None

    @property
    def usable(self) -> int | None:
        return None if self.chip is None else self.chip.usable

    @property
    def chips(self) -> int:
        return self.devices if self.chip is None else self.devices // self.chip.devices

    @property
    def hbm(self) -> int:
        """Bytes of the HBM of all chips."""
        return 0 if self.chip is None else self.chips * self.chip.hbm


def parse(name: str) -> Topology:
    """A topology by its name, or by the vendor's.

    Raises:
        RequestRejected: an unknown name; the message lists the known ones.
    """
    if match := re.fullmatch(r"cpu:(\d{1,4})", name, re.ASCII):
        if not 1 <= int(match[1]) <= MAX_CPUS:
            raise RequestRejected(f"topology = {name!r}: 1 to {MAX_CPUS} CPU devices can be simulated")
        return Topology(name=name, devices=int(match[1]), chip=None)
    known = VENDOR_NAMES.get(name, name)
    if known not in NAMES:
        vendors = ", ".join(VENDOR_NAMES)
        raise RequestRejected(f"topology = {name!r}: known are {', '.join(NAMES)}, the vendor's {vendors}, and cpu:N")
    kind, _, shape = known.partition(":")
    chip = CHIPS[kind]
    return Topology(name=known, devices=math.prod(map(int, shape.split("x"))) * chip.devices, chip=chip)


def parse_prices(text: str) -> dict[str, float]:
    """Dollars of a chip for an hour by its name, from "v5e=1.2,v6e=2.7".

    Raises:
        RequestRejected: an unknown chip, or no price.
    """
    prices = {}
    for entry in text.split(","):
        chip, _, price = entry.strip().partition("=")
        if chip not in CHIPS or not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", price, re.ASCII) or float(price) == 0:
            raise RequestRejected(
                f"price = {entry!r}: dollars of a chip for an hour, such as v5e=1.2,v6e=2.7; chips: {', '.join(CHIPS)}"
            )
        prices[chip] = float(price)
    return prices


def price_of(topology: Topology, prices: Mapping[str, float]) -> float | None:
    """Dollars of all chips for an hour; None if the chip has no price."""
    price = prices.get(topology.name.partition(":")[0])
    return None if price is None else topology.chips * price


def by_cost(prices: Mapping[str, float]) -> list[Topology]:
    """All topologies, the cheapest first; those without a price come last, the smaller ones first."""
    return sorted(map(parse, NAMES), key=lambda topology: price_of(topology, prices) or math.inf)


def memory_of(device: Any) -> int | None:
    """Bytes that a device, which is here or of a topology, has for arrays; None where it is a CPU or is not known."""
    if chip := CHIPS.get(_KINDS.get(device.device_kind, "")):
        return chip.usable
    if device.platform == "cpu" or device not in device.client.local_devices():
        return None
    return (device.memory_stats() or {}).get("bytes_limit")


def topology_here() -> str | None:
    """The name of this process's TPUs as a topology; None where they are CPUs or GPUs, or are not known here.

    For a process that compiles for these TPUs without using them, while this one holds them.
    """
    import jax

    devices = jax.local_devices()
    if devices[0].platform != "tpu":
        return None
    chip = _KINDS.get(devices[0].device_kind)
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
    rows, columns, *_ = topology.name.partition(":")[2].split("x")
    options = {"chips_per_host_bounds": [int(rows), int(columns), 1]}  # one host has all of them
    try:
        return list(topologies.get_topology_desc(platform="tpu", topology_name=topology.name, **options).devices)
    except Exception as error:
        raise ModelUnavailable(f"topology {topology.name}: libtpu can't describe it: {first_line(error)}") from error
