"""What a compiled program cost, and what the compiler says of it: one line of the ledger that `programs.py` keeps.

Constants, collectives and copies, which the compiler does not report, are read from the program's text.
Multiplications and additions are counted from the traced function: XLA's own count has the body of a loop once.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

Source = Literal["compiled", "cache", "bundle"]


@dataclass(frozen=True, kw_only=True)
class ProgramReport:
    """One line of the ledger: a program's name, the seconds until it was ready, and where it came from.

    `source` is "compiled", "cache" (jax's, which has compiled programs) or "bundle" (which has whole ones). `traced` is
    the time of tracing, for a program from a bundle that of the process which compiled it. `saved` is the time that
    cache or bundle saved.

    The compiler's figures, in bytes on each device, 0 if unknown: `arguments` of the program, `temporary` memory while
    it runs, and `in_place`, the results that reuse a donated argument. Read from the program's text, for planned
    programs only: `constant`, bytes of the largest constant; `all_reduces`, their number; and `moved`, bytes of the
    largest array that a step only copies, transposes or converts.
    """

    name: str
    seconds: float
    source: Source
    traced: float = 0.0
    saved: float = 0.0
    arguments: int = 0
    temporary: int = 0
    in_place: int = 0
    constant: int = 0
    all_reduces: int = 0
    moved: int = 0

    @property
    def cached(self) -> bool:
        """Whether an earlier process compiled it."""
        return self.source != "compiled"

    @property
    def compiling(self) -> float:
        """Seconds of compiling, here or in the process that did it; 0 if unknown."""
        whole = self.saved if self.source == "bundle" else self.seconds + self.saved
        return max(whole - self.traced, 0.0)


def report_of(
    name: str,
    compiled: jax.stages.Compiled,
    *,
    seconds: float,
    source: Source,
    traced: float = 0.0,
    saved: float = 0.0,
    reads_text: bool = False,
) -> ProgramReport:
    """The report of a compiled program, with the compiler's figures; those of its text only if it `reads_text`."""
    memory = compiled.memory_analysis()
    text = (compiled.as_text() or "") if reads_text else ""
    return ProgramReport(
        name=name,
        seconds=seconds,
        source=source,
        traced=traced,
        saved=saved,
        arguments=getattr(memory, "argument_size_in_bytes", 0),
        temporary=getattr(memory, "temp_size_in_bytes", 0),
        in_place=getattr(memory, "alias_size_in_bytes", 0),
        constant=largest_constant(text),
        all_reduces=all_reduces(text),
        moved=largest_move(text),
    )


_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f32": 4, "s32": 4, "u32": 4}
_CONSTANT = re.compile(r"= (\w+)\[([\d,]*)\]\S* constant\(")
_ALL_REDUCE = re.compile(r" all-reduce(?:-start)?\(")
_FUSED = re.compile(r" fusion\(.*?\bcalls=%?([\w.-]+)")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(
    r"^\s+(?P<root>ROOT )?%?(?P<name>[\w.-]+) = (?P<dtype>\w+)\[(?P<dimensions>[\d,]*)\](?P<layout>\S*) "
    r"(?P<operation>[\w-]+)\((?:\w+\[\S* )?%?(?P<operand>[\w.-]*).*?\)(?:.*\bcalls=%?(?P<calls>[\w.-]+))?"
)
# The start of a copy: its result, its source, and a semaphore.
_FROM_NEAR = re.compile(r"^\s+%?([\w.-]+) = \(\w+\[\S*, \w+\[\S*S\(1\)\S*, .* copy-start\(")
_MOVES = {"copy", "copy-done", "convert", "transpose"}
_SAME_BYTES = {"bitcast", "reshape"}


@dataclass(frozen=True, kw_only=True)
class _Instruction:
    """A line of a computation. `operand` is its first operand; `calls` is the computation that a fusion runs."""

    name: str
    operation: str
    operand: str
    calls: str | None
    size: int
    near: bool  # to or from the TPU core's own memory, which holds prefetched and kept data
    is_root: bool


def largest_constant(text: str) -> int:
    """Bytes of the largest array that is a constant of a program and not an argument."""
    return max((_bytes_of(*found) for found in _CONSTANT.findall(text)), default=0)


def all_reduces(text: str) -> int:
    """How many all-reduces a program has; one in a loop counts once."""
    return len(_ALL_REDUCE.findall(text))


def largest_move(text: str) -> int:
    """Bytes of the largest array that a program only copies, transposes or converts in a separate step.

    Such a step reads and writes memory and computes nothing. Inside a fusion that computes something it costs nothing,
    so a fusion counts only if it does nothing else.
    """
    computations = _computations(text)
    fused = set(_FUSED.findall(text))
    steps = (line for name, lines in computations.items() if name not in fused for line in lines)
    return max((line.size for line in steps if not line.near and _only_moves(line, computations)), default=0)


def _only_moves(line: _Instruction, computations: dict[str, list[_Instruction]]) -> bool:
    """Whether an instruction returns its operand unchanged but for place, order or dtype."""
    if line.operation != "fusion":
        return line.operation in _MOVES
    inside = {other.name: other for other in computations.get(line.calls or "", ())}
    at, moves = next((other for other in inside.values() if other.is_root), None), False
    while at is not None and at.operation in _MOVES | _SAME_BYTES:
        moves |= at.operation in _MOVES
        at = inside.get(at.operand)
    return moves and at is not None and at.operation == "parameter"


def _computations(text: str) -> dict[str, list[_Instruction]]:
    """The instructions of each computation, without those whose result is a tuple."""
    found: dict[str, list[_Instruction]] = {}
    current: list[_Instruction] = []
    brought_back: set[str] = set()
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            found[header[1]] = current = []
        elif begun := _FROM_NEAR.match(line):
            brought_back.add(begun[1])
        elif instruction := _INSTRUCTION.match(line):
            current.append(
                _Instruction(
                    name=instruction["name"],
                    operation=instruction["operation"],
                    operand=instruction["operand"],
                    calls=instruction["calls"],
                    size=_bytes_of(instruction["dtype"], instruction["dimensions"]),
                    near="S(" in instruction["layout"] or instruction["operand"] in brought_back,
                    is_root=instruction["root"] is not None,
                )
            )
    return found


def _bytes_of(dtype: str, dimensions: str) -> int:
    return prod(int(length) for length in dimensions.split(",") if length) * _BYTES.get(dtype, 8)


def operations(function: Callable[..., Any], *args: Any) -> int:
    """The operations of one call of a function of JAX arrays, from shapes.

    Args:
        function: is traced.
        args: arrays or their shapes.
    """
    return _of_jaxpr(jax.make_jaxpr(function)(*args).jaxpr)


def _of_jaxpr(jaxpr: Jaxpr) -> int:
    return sum(map(_of_equation, jaxpr.eqns))


def _of_equation(equation: JaxprEqn) -> int:
    name, parameters = equation.primitive.name, equation.params
    if name == "dot_general":
        (contracted, _), _ = parameters["dimension_numbers"]
        shape = _shape(equation.invars[0])
        return 2 * _size(equation) * math.prod(shape[int(axis)] for axis in contracted)
    if name == "conv_general_dilated":
        kernel, numbers = _shape(equation.invars[1]), parameters["dimension_numbers"]
        return 2 * _size(equation) * math.prod(kernel) // kernel[int(numbers.rhs_spec[0])]
    inner = [_of_jaxpr(found) for value in parameters.values() for found in _jaxprs(value)]
    if name == "cond":
        # One branch runs. Of those for platforms the last one is for all others; some do the same work by other means.
        return inner[-1] if parameters.get("branches_platforms") else max(inner, default=0)
    return int(parameters["length"]) * sum(inner) if name == "scan" else sum(inner)


def _size(equation: JaxprEqn) -> int:
    return math.prod(_shape(equation.outvars[0]))


def _shape(variable: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = variable.aval.shape
    return shape


def _jaxprs(value: Any) -> list[Jaxpr]:
    if isinstance(value, ClosedJaxpr):
        return [value.jaxpr]
    if isinstance(value, Jaxpr):
        return [value]
    return [found for each in value for found in _jaxprs(each)] if isinstance(value, tuple | list) else []
