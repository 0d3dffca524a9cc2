"""Kernels of convolutions, kept as XLA on CPU takes them best.

torch's order of axes is outputs, inputs, height, width, and XLA would rearrange every kernel at every call: an eighth
of the processor time of a small UNet's step. So they are kept as height, width, inputs, outputs; and those of 3x3 with
many channels as `winograd.py` takes them. On accelerators the compiler chooses the layout of arguments itself, and
torch's order stays. Does not cover transposed convolutions and those of one or three dimensions.
"""

from collections.abc import Mapping, Sequence

import torch

from hfjax_app.runtime.cpu import winograd
from hfjax_app.runtime.model_transform import Group, LazyTensor, Transform

_KEPT = (2, 3, 1, 0)  # of torch's axes
_TORCHS = (3, 2, 0, 1)  # of the kept ones


class KeptConv2d(torch.nn.Conv2d):
    """A convolution whose kernel is [height, width, inputs, outputs]."""

    @property
    def weight(self) -> torch.Tensor:
        """In torch's order, which costs nothing inside a program: XLA's own rearrangement undoes it."""
        return self._parameters["weight"].permute(_TORCHS)


class ConvLayout(Transform):
    """Kernels of a module's 2-dimensional convolutions in XLA's order.

    Args:
        module: as it is before any transform.
        winograd: whether to keep some for Winograd's convolution. Its tiles take four times the image's memory, and its
            sums would lose digits of half precision.
    """

    def __init__(self, module: torch.nn.Module, *, winograd: bool = False):
        layers = {name: part for name, part in module.named_modules() if isinstance(part, torch.nn.Conv2d)}
        self._transformed = {f"{name}.weight": winograd and _gains(layer) for name, layer in layers.items()}

    def adapt(self, model: torch.nn.Module, groups: Sequence[Group] = ()) -> None:
        """Let convolutions take kernels as they are kept; transformed ones reach `operators.convolution` as they are,
        which knows them by their three axes."""
        for name, transformed in self._transformed.items():
            layer = model.get_submodule(name.removesuffix(".weight"))
            kernel = self.store(name, LazyTensor.of(layer._parameters["weight"].detach()))[name]
            layer._parameters["weight"] = torch.nn.Parameter(kernel[:], requires_grad=False)
            if not transformed:
                own = type(layer)
                plain = own is torch.nn.Conv2d
                layer.__class__ = KeptConv2d if plain else type(own.__name__, (KeptConv2d, own), {})

    def store(self, name: str, tensor: LazyTensor) -> Mapping[str, LazyTensor]:
        """A kernel [outputs, inputs, height, width] as [height, width, inputs, outputs] or [16, inputs, outputs]."""
        if name not in self._transformed:
            return {name: tensor}
        kernel = tensor[:]
        held = winograd.transformed(kernel) if self._transformed[name] else kernel.permute(_KEPT)
        return {name: LazyTensor.of(held)}


def _gains(layer: torch.nn.Conv2d) -> bool:
    """Whether a layer is a plain 3x3 convolution with many channels."""
    form = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.groups, layer.padding_mode)
    plain = type(layer) is torch.nn.Conv2d and form == ((3, 3), (1, 1), (1, 1), (1, 1), 1, "zeros")
    return plain and min(layer.in_channels, layer.out_channels) >= winograd.LEAST_CHANNELS
