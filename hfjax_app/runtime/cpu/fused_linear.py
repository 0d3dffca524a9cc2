"""Linear layers that read the same input, as one product: query, key and value, or gate and up.

On a CPU each product has a cost of its own, and a large one reads its weights faster than several small ones. The
layers share one weight as tied layers do, and XLA makes one product of those that are alike. Not for int8 weights,
whose products gain nothing, nor for weights that are split over devices, whose parts would no longer be whole heads.
"""

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import torch

from hfjax_app.runtime.model_transform import Group, LazyTensor, Transform


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


class FusedLinear(Transform):
    """One weight for each group, under the name of its first layer's.

    A group's parts are held back until all have come, so that never two whole models exist.
    """

    def __init__(self) -> None:
        self._group_of: dict[str, Group] = {}
        self._parts: dict[str, torch.Tensor] = {}

    def adapt(self, model: torch.nn.Module, groups: Sequence[Group] = ()) -> None:
        """Put parts of one layer in the places of each group's layers."""
        self._group_of = {f"{name}.weight": names for names in groups for name in names}
        for names in groups:
            layers = [cast(torch.nn.Linear, model.get_submodule(name)) for name in names]
            starts = np.cumsum([0, *(layer.out_features for layer in layers)]).tolist()
            whole = torch.empty((starts[-1], layers[0].in_features), dtype=layers[0].weight.dtype, device="meta")
            weight = torch.nn.Parameter(whole, requires_grad=False)
            for name, layer, start in zip(names, layers, starts, strict=False):
                parent, _, leaf = name.rpartition(".")
                setattr(model.get_submodule(parent), leaf, Part(weight, start, layer))

    def store(self, name: str, tensor: LazyTensor) -> Mapping[str, LazyTensor]:
        """[all outputs, inputs] when the group's last part has come."""
        if name not in self._group_of:
            return {name: tensor}
        self._parts[name] = tensor[:]  # read now: its file may be closed before the last part comes
        names = [f"{layer}.weight" for layer in self._group_of[name]]
        if any(other not in self._parts for other in names):
            return {}
        return {names[0]: LazyTensor.of(torch.cat([self._parts.pop(other) for other in names]))}
