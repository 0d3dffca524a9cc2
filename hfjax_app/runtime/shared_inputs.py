"""Which linear layers of a model read the same input, seen in a call of it and not told by an architecture's names."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hfjax_app.runtime.model_transform import Group


@contextmanager
def observed(model: torch.nn.Module) -> Iterator[list[Group]]:
    """The groups of the one call of a model that is made while the block runs; listed when it ends.

    Layers of a group have the same parent, are called once, and share their weights with no other module.
    """
    owners = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    alone: dict[torch.nn.Module, str] = {
        layer: name
        for name, layer in model.named_modules()
        if type(layer) is torch.nn.Linear and owners[id(layer.weight)] == 1
    }
    calls: list[tuple[torch.nn.Module, torch.Tensor]] = []  # the tensors too, so that none takes another's id

    def note(layer: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if inputs:  # what is given by name stays as it is
            calls.append((layer, inputs[0]))

    hooks = [layer.register_forward_pre_hook(note) for layer in alone]
    groups: list[Group] = []
    try:
        yield groups
    finally:
        for hook in hooks:
            hook.remove()
    times = Counter(layer for layer, _ in calls)
    readers: dict[tuple[int, str], list[str]] = {}
    for layer, x in calls:
        if times[layer] == 1:
            readers.setdefault((id(x), alone[layer].rpartition(".")[0]), []).append(alone[layer])
    groups.extend(tuple(names) for names in readers.values() if len(names) > 1)
