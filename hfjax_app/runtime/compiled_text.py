"""Figures read from a compiled program's text, which the compiler does not report: constants, collectives, copies."""

import re
from dataclasses import dataclass
from math import prod

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
    return max((_size(*found) for found in _CONSTANT.findall(text)), default=0)


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
                    size=_size(instruction["dtype"], instruction["dimensions"]),
                    near="S(" in instruction["layout"] or instruction["operand"] in brought_back,
                    is_root=instruction["root"] is not None,
                )
            )
    return found


def _size(dtype: str, dimensions: str) -> int:
    return prod(int(length) for length in dimensions.split(",") if length) * _BYTES.get(dtype, 8)
