"""Fused QKV and gate-up: linear layers that read the same input are one product.

On a CPU each product has a fixed cost, and a large one reads its weights faster than several small ones. The layers
share one weight as tied layers do, and XLA merges their equal products. Does not cover int8 weights, which gain
nothing, and weights that are split over devices, whose parts would no longer be whole heads.
"""

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import torch

from hfjax_app.runtime.model_transform import Group, LazyTensor, Transform


class Part(torch.nn.Module):
    """A linear layer whose outputs are a part of a larger layer's outputs.

    Args:
        weight: [all outputs, inputs], shared by all parts.
        start: the index of this layer's first output.
        linear: the original layer; its bias is kept.
    """

    def __init__(self, weight: torch.nn.Parameter, start: int, linear: torch.nn.Linear):
        super().__init__()
        self.in_features, self.out_features, self.start = linear.in_features, linear.out_features, start
        self.weight, self.bias = weight, linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.nn.functional.linear(x, self.weight).narrow(-1, self.start, self.out_features)
        return out if self.bias is None else out + self.bias


class FusedLinear(Transform):
    """Stores one weight per group, under the name of the first layer's weight.

    Parts of an incomplete group are held in memory, so that two whole models never exist at the same time.
    """

    def __init__(self) -> None:
        self._group_of: dict[str, Group] = {}
        self._parts: dict[str, torch.Tensor] = {}

    def adapt(self, model: torch.nn.Module, groups: Sequence[Group] = ()) -> None:
        """Replace the layers of each group by parts of one layer."""
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
        """The fused weight, [all outputs, inputs], with the last part of a group; nothing with the parts before."""
        if name not in self._group_of:
            return {name: tensor}
        self._parts[name] = tensor[:]  # read now: its file may be closed before the last part is read
        names = [f"{layer}.weight" for layer in self._group_of[name]]
        if any(other not in self._parts for other in names):
            return {}
        return {names[0]: LazyTensor.of(torch.cat([self._parts.pop(other) for other in names]))}
