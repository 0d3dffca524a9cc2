"""What is done to a model and to its weights for the devices at hand: the interface, and several in a row.

The list of them is in `transforms.py`. A transform changes how a model computes or what is held of its weights, never
what the architecture's code is given to do.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

# Names of linear layers that read the same input, in the order in which they are called.
Group = tuple[str, ...]


class LazyTensor:
    """A tensor in memory, in a file, or on the meta device (then a shape), read and cast only where it is indexed.

    Args:
        source: a torch tensor, or a slice of a safetensors file.
        shape: of all of it.
        saved: the dtype that the source has it in.
        dtype: that it is read in; None: as saved.
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
        """That part; it may share memory with a file."""
        part: torch.Tensor = self._source[index]
        return part.to(self.dtype)

    def copied(self, index: Any) -> torch.Tensor:
        """That part, contiguous in memory of its own, by one allocation: a file can change at any time."""
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
        """Change the modules of a model without weights, so that they take what `store` makes.

        Args:
            model: on the meta device.
            groups: its linear layers that read the same input, see `shared_inputs.py`.
        """

    def store(self, name: str, tensor: LazyTensor) -> Mapping[str, LazyTensor]:
        """What is held in the place of one parameter, by name; nothing where it waits for others to come.

        Args:
            name: in the model as it was before `adapt`, or as an earlier transform named it.
            tensor: real, or on the meta device for planning.
        """
        return {name: tensor}


class Transforms:
    """Several transforms, one after the other.

    Args:
        transforms: in order; each is given what the one before it made.
        heads_per_row: of a cache, how many of so many key-value heads, of so many channels, lie side by side.
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
