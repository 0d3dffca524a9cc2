"""Changes of a model and its weights for the devices at hand: the interface, and a sequence of them.

The list of transforms is in `transforms.py`. A transform changes how a model computes or how its weights are stored,
never the result that the architecture's code describes.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

# Names of linear layers that read the same input, in the order in which they are called.
Group = tuple[str, ...]


class LazyTensor:
    """A tensor in memory, in a file, or on the meta device (a shape only), read and cast where it is indexed.

    Args:
        source: a torch tensor, or a slice of a safetensors file.
        shape: of the whole tensor.
        saved: the dtype of the source.
        dtype: of the parts that are read; None: as saved.
    """

    def __init__(self, source: Any, shape: Sequence[int], saved: torch.dtype, dtype: torch.dtype | None = None):
        self._source, self._saved = source, saved
        self.shape = tuple(shape)
        self.dtype = dtype or saved

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "LazyTensor":
        return cls(tensor, tensor.shape, tensor.dtype)

    @property
    def saved_bytes(self) -> int:
        return math.prod(self.shape) * self._saved.itemsize

    def to(self, dtype: torch.dtype) -> "LazyTensor":
        return LazyTensor(self._source, self.shape, self._saved, dtype)

    def __getitem__(self, index: Any) -> torch.Tensor:
        """A part of the tensor; it may share memory with a file."""
        part: torch.Tensor = self._source[index]
        return part.to(self.dtype)

    def copied(self, index: Any) -> torch.Tensor:
        """A contiguous copy of a part, made with one allocation: a file can change at any time."""
        part: torch.Tensor = self._source[index]
        return part.to(self.dtype, copy=True, memory_format=torch.contiguous_format)


def stored_weight(layer: torch.nn.Module) -> torch.Tensor:
    """The weight that a layer holds, where its class computes `weight` from it."""
    weight = layer._parameters["weight"]
    assert weight is not None
    return weight


class Transform:
    """One change of a model; this base class changes nothing."""

    def adapt(self, model: torch.nn.Module, groups: Sequence[Group] = ()) -> None:
        """Change the modules of a model without weights, so that they accept the tensors that `store` makes.

        Args:
            model: on the meta device.
            groups: its linear layers that read the same input; see `decoder.py`.
        """

    def store(self, name: str, tensor: LazyTensor) -> Mapping[str, LazyTensor]:
        """The tensors to hold in place of one parameter, by name; empty while more parameters are needed.

        Args:
            name: of the parameter before `adapt`, or as an earlier transform named it.
            tensor: real, or on the meta device for planning.
        """
        return {name: tensor}


class Transforms:
    """Several transforms, applied one after the other.

    Args:
        transforms: in order; each gets the result of the one before it.
    """

    def __init__(self, *transforms: Transform):
        self._transforms = transforms

    def adapt(self, model: torch.nn.Module, groups: Sequence[Group] = ()) -> None:
        """As `Transform.adapt`."""
        for transform in self._transforms:
            transform.adapt(model, groups)

    def store(self, name: str, tensor: LazyTensor) -> dict[str, LazyTensor]:
        """As `Transform.store`."""
        held = {name: tensor}
        for transform in self._transforms:
            held = {key: value for item in held.items() for key, value in transform.store(*item).items()}
        return held


NONE = Transforms()
