"""Groups of linear layers that read the same input, found by observing a call and not from an architecture's names."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hfjax_app.runtime.model_transform import Group


@contextmanager
def observed(model: torch.nn.Module) -> Iterator[list[Group]]:
    """The groups in the single call of a model inside the block; the list is filled when the block ends.

    Layers of a group have the same parent, are called once, and share their weights with no other module.
    """
    owners = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    unshared: dict[torch.nn.Module, str] = {
        layer: name
        for name, layer in model.named_modules()
        if type(layer) is torch.nn.Linear and owners[id(layer.weight)] == 1
    }
    calls: list[tuple[torch.nn.Module, torch.Tensor]] = []  # holds the tensors, so that ids are not reused

    def record(layer: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if inputs:  # a layer with a keyword argument is not grouped
            calls.append((layer, inputs[0]))

    hooks = [layer.register_forward_pre_hook(record) for layer in unshared]
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
            readers.setdefault((id(x), unshared[layer].rpartition(".")[0]), []).append(unshared[layer])
    groups.extend(tuple(names) for names in readers.values() if len(names) > 1)
