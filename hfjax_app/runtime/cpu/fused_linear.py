"""Linear layers that read the same input, merged into one product: query, key and value, or gate and up.

On a CPU each product has a cost of its own, and a large one reads its weights faster than several small ones. Which
layers belong together is seen in a call of the model, not told by the names of an architecture's layers. The layers
share one weight as tied layers do, and XLA makes one product of those that are alike. Does not merge int8 weights,
whose products gain nothing, nor weights that are split over devices, whose parts would no longer be whole heads.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import torch

# Names of linear layers that read the same input, in the order in which they are called.
Group = tuple[str, ...]


class Part(torch.nn.Module):
    """A linear layer whose outputs are some of those of a larger one.

    Args:
        weight: [all outputs, inputs], which all parts share.
        start: the first of this layer's outputs.
        linear: the layer that it stands for; its bias stays its own.
    """

    def __init__(self, weight: torch.nn.Parameter, start: int, linear: torch.nn.Linear):
        super().__init__()
        self.in_features, self.out_features, self.start = linear.in_features, linear.out_features, start
        self.weight, self.bias = weight, linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.nn.functional.linear(x, self.weight).narrow(-1, self.start, self.out_features)
        return out if self.bias is None else out + self.bias


@contextmanager
def observed(model: torch.nn.Module) -> Iterator[list[Group]]:
    """The groups of the one call of a model that is made while the block runs; listed when it ends.

    Layers of a group have the same parent, are called once, and share their weights with nobody.
    """
    owners = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    alone = {
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


def adapt(model: torch.nn.Module, groups: Sequence[Group]) -> None:
    """Put parts of one layer in the places of each group's layers, in a model without weights."""
    for names in groups:
        layers = [model.get_submodule(name) for name in names]
        starts = np.cumsum([0, *(layer.out_features for layer in layers)]).tolist()
        whole = torch.empty((starts[-1], layers[0].in_features), dtype=layers[0].weight.dtype, device="meta")
        weight = torch.nn.Parameter(whole, requires_grad=False)
        for name, layer, start in zip(names, layers, starts, strict=False):
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, Part(weight, start, layer))


def merged(weights: dict[str, Any], groups: Sequence[Group]) -> dict[str, Any]:
    """The same weights (on one device) or shapes, where each group's are one, under the name of its first layer's.

    What is merged is dropped from `weights`, one group after the other, so that never the whole model exists twice.
    """
    for names in groups:
        parts = [weights.pop(f"{name}.weight") for name in names]
        weights[f"{names[0]}.weight"] = _concatenated(parts)
    return weights


def _concatenated(parts: list[Any]) -> Any:
    first = parts[0]
    if isinstance(first, jax.ShapeDtypeStruct):
        return first.update(shape=(sum(part.shape[0] for part in parts), *first.shape[1:]))
    return jax.device_put(np.concatenate(parts), first.sharding)
