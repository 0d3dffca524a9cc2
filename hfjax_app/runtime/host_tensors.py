"""Tensors whose values can be read in a trace: models compute a picture's layout of its grid with `.tolist()`."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from torch.overrides import TorchFunctionMode
from torchax import interop

from hfjax_app.runtime.seams.torchax import array_of, is_check, on_host

_OF_NUMBERS = (torch.as_tensor, torch.tensor)


class HostTensors(TorchFunctionMode):
    """Inside a trace of `pure_function` plain tensors stay on the host until an operator joins them with traced ones.

    There a scalar becomes a number of Python, an index of booleans the indices that are true, any other tensor a
    constant. What a model checks of traced values is taken as true.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        kinds = {_is_on_host(leaf) for leaf in jax.tree.leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        if is_check(function) and kinds == {False}:
            return on_host(torch.tensor, True)
        if function in _OF_NUMBERS and False not in kinds:
            return on_host(function, *args, **kwargs | {"device": "cpu"})
        if kinds == {True} and kwargs.get("device") is None:
            return on_host(function, *args, **kwargs)
        if kinds == {True, False}:
            if function is torch.Tensor.__getitem__:
                args = (args[0], _positions(args[1]))
            args, kwargs = jax.tree.map(_constant, (tuple(args), kwargs))
        return function(*args, **kwargs)


def _is_on_host(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor


def _positions(index: Any) -> Any:
    """An index of a tensor, with those of booleans as the indices that are true: their number is known here only."""
    parts: list[Any] = []
    for part in index if isinstance(index, tuple) else (index,):
        is_mask = isinstance(part, torch.Tensor) and _is_on_host(part) and part.dtype == torch.bool
        parts += part.nonzero(as_tuple=True) if is_mask else [part]
    return tuple(parts)


def _constant(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not _is_on_host(value):
        return value
    return value.item() if value.ndim == 0 else interop.torch_view(array_of(value))
