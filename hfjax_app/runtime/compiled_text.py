"""What a compiled program's text says and the compiler's figures don't: its constants, collectives and copies."""

import re
from math import prod

_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f32": 4, "s32": 4, "u32": 4}
_CONSTANT = re.compile(r"= (\w+)\[([\d,]*)\]\S* constant\(")
_ALL_REDUCE = re.compile(r" all-reduce(?:-start)?\(")


def largest_constant(text: str) -> int:
    """Bytes of the largest array that is written into a program instead of being an argument of it."""
    return max((_size(*found) for found in _CONSTANT.findall(text)), default=0)


def all_reduces(text: str) -> int:
    """How many all-reduces a program has; one in a loop counts once."""
    return len(_ALL_REDUCE.findall(text))


def _size(dtype: str, dimensions: str) -> int:
    return prod(int(length) for length in dimensions.split(",") if length) * _BYTES.get(dtype, 8)
