"""The time of a program by the TPU compiler's own cost model: the `estimated_cycles` of its compiled text.

The estimate leaves out copies that run beside the arithmetic, collectives, and the fixed cost of a call. Of branches it
counts the first: a greedy step without penalties and log-probabilities. So a program takes at least the larger one of
the estimate and its bytes over the bandwidth. Only ratios of programs that were compiled alike are to be trusted.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hfjax_app.errors import RequestRejected
from hfjax_app.runtime.topology import CHIPS, Chip

# Cycles per second. They follow from the published operations per second: 4 matrix units of 128 x 128 (v5e), 2 of
# 256 x 256 (v6e), two operations each.
CLOCKS = {"v5e": 1.5e9, "v6e": 1.75e9}

_HEADER = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{\s*$")
_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')
_LOOP = re.compile(r" while\(.*condition=%?([\w.-]+), body=%?([\w.-]+)")
# A loop of known length compares its counter, which begins at 0, with a constant.
_CONSTANT = re.compile(r"%?([\w.-]+) = s32\[\]\S* constant\((\d+)\)")
_COMPARED = re.compile(r"ROOT .* compare\(\S*?%?[\w.-]+, (?:\S+ )?%?([\w.-]+)\), direction=LT")
_CALLED = re.compile(r" (?:call|conditional)\(.*?(?:to_apply|branch_computations|true_computation)=\{?%?([\w.-]+)")
# A kernel of its own, such as Pallas: the compiler does not look into it.
_KERNEL = re.compile(r' custom-call\(.*custom_call_target="(tpu_custom_call|Mosaic\w*)"')
_OPERANDS = re.compile(r"operand_layout_constraints=\{(.*?)\}\}")
_FLOATS = re.compile(r"\bb?f\d+\[([\d,]*)\]")


@dataclass(frozen=True, kw_only=True)
class KernelCost:
    """What a call of a kernel moves and computes, stated by a person, because the compiler does not know.

    Args:
        bytes_read: from HBM, and written there.
        operations: additions and multiplications.
    """

    bytes_read: float
    operations: float

    def cycles(self, chip: Chip, clock: float) -> int:
        """Cycles of the slower one of both."""
        return round(clock * max(self.bytes_read / chip.bandwidth, self.operations / chip.flops))


@dataclass(frozen=True, kw_only=True)
class Cycles:
    """Cycles of a program.

    Args:
        outside: once for each call, with all loops of known length.
        steps: of one iteration of each loop whose length depends on arguments, such as the loop over a call's tokens.
    """

    outside: int
    steps: tuple[int, ...]

    @property
    def step(self) -> int:
        """Cycles of a decoding step, the dearest loop's; without loops, of the call."""
        return max(self.steps, default=self.outside)


# Of a call, from the shapes of its floating-point operands.
KernelCosts = Callable[[Sequence[tuple[int, ...]]], KernelCost]


def estimate(text: str, *, chip: str, kernel: KernelCosts | None = None) -> Cycles:
    """The estimate of a compiled program's text.

    Args:
        text: as `jax.stages.Compiled.as_text` returns it.
        chip: "v5e" or "v6e".
        kernel: the costs of kernels whose cycles the compiler does not know.

    Raises:
        RequestRejected: a text without estimates, an unknown chip, or a kernel without stated figures.
    """
    if chip not in CLOCKS:
        raise RequestRejected(f"chip = {chip!r}: the clock is known of {', '.join(CLOCKS)}")
    if not _CYCLES.search(text):
        raise RequestRejected("the program has no estimates: it was not compiled for a TPU")

    def of_kernel(line: str) -> int:
        if kernel is None:
            [name] = _KERNEL.findall(line)
            raise RequestRejected(
                f"the compiler has no estimate for the kernel {name!r}: state the bytes and operations of a call"
            )
        operands = _OPERANDS.search(line)
        shapes = _FLOATS.findall(operands[1]) if operands else []
        return kernel([tuple(map(int, shape.split(","))) for shape in shapes if shape]).cycles(
            CHIPS[chip], CLOCKS[chip]
        )

    computations, entry = _computations(text)
    return _cycles(computations, entry, of_kernel)


def seconds(cycles: int, chip: str) -> float:
    return cycles / CLOCKS[chip]


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """The lines of each computation, and the name of the entry."""
    computations: dict[str, list[str]] = {}
    lines: list[str] = []
    entry = ""
    for line in text.splitlines():
        if header := _HEADER.match(line):
            lines = computations.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
        elif line.startswith("  "):
            lines.append(line)
    return computations, entry


def _cycles(computations: dict[str, list[str]], name: str, of_kernel: Callable[[str], int]) -> Cycles:
    outside, steps = 0, list[int]()
    for line in computations.get(name, []):
        if cycles := _CYCLES.search(line):
            outside += int(cycles[1])
        elif _KERNEL.search(line):
            outside += of_kernel(line)
        if loop := _LOOP.search(line):
            body = _cycles(computations, loop[2], of_kernel)
            whole = body.outside + sum(body.steps)  # a loop inside: one iteration of it
            count = _count(computations.get(loop[1], []))
            if count is None:
                steps.append(whole)
            else:
                outside += count * whole
        if called := _CALLED.search(line):
            inner = _cycles(computations, called[1], of_kernel)
            outside += inner.outside
            steps += inner.steps
    return Cycles(outside=outside, steps=tuple(steps))


def _count(condition: list[str]) -> int | None:
    """The iterations of a loop with this condition; None if they depend on arguments."""
    constants = {match[1]: int(match[2]) for line in condition if (match := _CONSTANT.search(line))}
    limit = next((match[1] for line in condition if (match := _COMPARED.search(line))), None)
    return None if limit is None else constants.get(limit)
