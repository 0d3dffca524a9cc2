"""The number of tokens already in a slot, for models that use it in Python arithmetic.

Supports addition, subtraction and comparison; other operations go to the tensor.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch


class SymbolicLength:
    """A traced integer with known bounds.

    Arithmetic with Python ints keeps the bounds. A comparison such as the one in `max(0, 1 - length)` gives a Python
    bool where all lengths within the bounds give the same answer. Torch operations receive the tensor.

    Args:
        tensor: int32 scalar.
        low, high: the smallest and the largest possible value.
    """

    def __init__(self, tensor: torch.Tensor, low: int, high: int):
        self.tensor, self.low, self.high = tensor, low, high

    def __add__(self, other: Any) -> Any:
        if isinstance(other, int):
            return SymbolicLength(self.tensor + other, self.low + other, self.high + other)
        return self.tensor + other

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self + -other

    def __rsub__(self, other: Any) -> Any:
        return SymbolicLength(-self.tensor, -self.high, -self.low) + other

    def __gt__(self, other: Any) -> Any:
        return self._compare(operator.gt, other)

    def __ge__(self, other: Any) -> Any:
        return self._compare(operator.ge, other)

    def __lt__(self, other: Any) -> Any:
        return self._compare(operator.lt, other)

    def __le__(self, other: Any) -> Any:
        return self._compare(operator.le, other)

    def _compare(self, compare: Callable[[Any, Any], Any], other: Any) -> Any:
        """A Python bool where both bounds give the same answer, since all values between do too; otherwise traced."""
        if isinstance(other, int) and compare(self.low, other) == compare(self.high, other):
            return compare(self.low, other)
        return compare(self.tensor, other)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor, name)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        plain = [arg.tensor if isinstance(arg, SymbolicLength) else arg for arg in args]
        return function(
            *plain, **{k: v.tensor if isinstance(v, SymbolicLength) else v for k, v in (kwargs or {}).items()}
        )
