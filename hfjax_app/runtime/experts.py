"""A mixture's experts: how many of them a token uses, found by observing a call and not from a config's names."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch


@contextmanager
def used(model: torch.nn.Module) -> Iterator[dict[str, int]]:
    """How many experts a token uses, by the name of the module that holds them, in a call of the model in the block.

    A module with a parameter of three axes whose call gets integers [tokens, experts of a token] holds experts. One
    that computes all of its experts for each token (Llama 4) gets none, and is left out.
    """
    found: dict[str, int] = {}

    def record(name: str, _module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor) and value.ndim == 2 and not value.is_floating_point():
                found[name] = value.shape[-1]

    hooks = [
        module.register_forward_pre_hook(partial(record, name), with_kwargs=True)
        for name, module in model.named_modules()
        if any(parameter.ndim == 3 for parameter in module._parameters.values() if parameter is not None)
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
