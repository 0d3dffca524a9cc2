"""Blocks of one structure, traced once for all of them.

A denoiser of 60 equal blocks takes a minute to trace, because torchax runs each operation of each block. Here the
first block becomes a jitted function of its weights and arguments, and jax keeps its trace for the others. XLA puts the
calls' bodies in their places, so that compiled programs stay the same. It is for blocks whose arguments are tensors and
plain values. Where several devices share the tokens of a picture, a block's arguments and results are split.
"""

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import torch
from torch.utils import _pytree as torch_pytree
from torchax import interop
from torchax.tensor import Tensor
from torchax.view import View

from hfjax_app.runtime.model_transform import Group, Transform
from hfjax_app.runtime.token_parts import over_devices

_PLAIN = (bool, int, float, str, type(None), torch.dtype)
_BY_IDENTITY = (type, torch.Tensor, functools.partial, types.FunctionType, types.MethodType)
_OF_TORCH = frozenset(vars(torch.nn.Module()))


class EqualBlocks(Transform):
    """Has blocks of a list that are equal but for their weights traced once; weights are unchanged."""

    def adapt(self, model: torch.nn.Module, groups: Sequence[Group] = ()) -> None:
        for blocks in [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]:
            alike: dict[Any, list[torch.nn.Module]] = {}
            for block in [each for each in blocks if each is not None]:  # autoencoders have such gaps
                alike.setdefault(_structure(block), []).append(block)
            for members in alike.values():
                if len(members) > 1:
                    trace = _Trace()
                    for block in members:
                        object.__setattr__(block, "trace_of_equals", trace)
                        block.__class__ = _traced_once(type(block))


class _Trace:
    """What equal blocks share while they are traced; a copy of the blocks has a new one.

    Attributes:
        functions: jitted, by the arguments that are not tensors.
    """

    def __init__(self) -> None:
        self.functions: dict[str, Callable[..., Any]] = {}

    def __deepcopy__(self, _memo: dict[int, Any]) -> "_Trace":
        return _Trace()


class _Body(torch.nn.Module):
    """A block's own forward, without the hooks around it, which run for each block."""

    def __init__(self, block: torch.nn.Module, forward: Callable[..., Any]):
        super().__init__()
        self.block, self._forward = block, forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(self.block, *args, **kwargs)


def _traced_once(kind: Any) -> type[Any]:
    """A class of blocks whose forward is a call of a function that is traced once for all that share a `_Trace`."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        trace: _Trace = self.trace_of_equals
        leaves, structure = torch_pytree.tree_flatten((args, kwargs))
        tensors = [leaf if isinstance(leaf, Tensor | View) else None for leaf in leaves]
        rest = [leaf if tensor is None else None for leaf, tensor in zip(leaves, tensors, strict=True)]
        # A call that is not traced, has values that only their identity tells apart, or whose parts are listened to
        is_plain = any(each is not None for each in tensors) and all(type(each) in _PLAIN for each in rest)
        if not is_plain or any(map(_has_hooks, list(self.modules())[1:])):
            return kind.forward(self, *args, **kwargs)

        def body(weights: Any, given: Any) -> Any:
            weights, given = interop.torch_view((weights, jax.tree.map(over_devices, given)))
            merged = [plain if tensor is None else tensor for tensor, plain in zip(given, rest, strict=True)]
            inner_args, inner_kwargs = torch_pytree.tree_unflatten(merged, structure)
            block = _Body(self, kind.forward)
            result = interop.jax_view(torch.func.functional_call(block, weights, inner_args, inner_kwargs))
            return jax.tree.map(over_devices, result)

        key = str((structure, rest))
        function = trace.functions.setdefault(key, jax.jit(body))
        named = dict(self.named_parameters()) | dict(self.named_buffers())
        weights = {f"block.{name}": tensor for name, tensor in named.items()}
        return interop.call_jax(function, weights, tensors)

    return type(kind.__name__, (kind,), {"__module__": kind.__module__, "forward": forward})


def _structure(module: torch.nn.Module) -> Any:
    """Equal for modules that compute the same function of their weights and arguments."""
    tensors = [(name, tuple(t.shape), t.dtype) for name, t in (*module.named_parameters(), *module.named_buffers())]
    parts = [(name, type(part), _own(part)) for name, part in module.named_modules()]
    return tuple(tensors), tuple(parts)


def _own(module: torch.nn.Module) -> Any:
    """A module's own attributes. Hooks are not compared, so a module with hooks equals itself alone."""
    own = {name: value for name, value in vars(module).items() if name not in _OF_TORCH}
    return (id(module) if _has_hooks(module) else None, module.training, _value(own))


def _has_hooks(module: torch.nn.Module) -> bool:
    return any(value for name, value in vars(module).items() if name.endswith("_hooks"))


def _value(value: Any, inside: frozenset[int] = frozenset()) -> Any:
    """Something hashable that is equal for equal values; for what can't be compared, its identity.

    Args:
        value: anything.
        inside: identities of the objects that hold it.
    """
    if isinstance(value, _PLAIN):
        return type(value), value
    inside |= {id(value)}
    if isinstance(value, Mapping):
        return tuple((name, _value(each, inside)) for name, each in value.items() if id(each) not in inside)
    if isinstance(value, tuple | list):
        return type(value), tuple(_value(each, inside) for each in value if id(each) not in inside)
    if isinstance(value, _BY_IDENTITY) or not hasattr(value, "__dict__"):
        return id(value)
    return type(value), _value(vars(value), inside)
