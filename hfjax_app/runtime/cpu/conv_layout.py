"""Kernels of convolutions, kept as XLA on CPU takes them best.

torch's order of axes is outputs, inputs, height, width, and XLA would rearrange every kernel at every call: an eighth
of the processor time of a small UNet's step. So they are kept as height, width, inputs, outputs. On accelerators the
compiler chooses the layout of arguments itself, and torch's order stays. Does not cover transposed convolutions and
those of one or three dimensions.
"""

from collections.abc import Mapping, Sequence

import torch

from hfjax_app.runtime.model_transform import Group, LazyTensor, Transform, stored_weight

_KEPT = (2, 3, 1, 0)  # of torch's axes
_TORCHS = (3, 2, 0, 1)  # of the kept ones


class KeptConv2d(torch.nn.Conv2d):
    """A convolution whose kernel is [height, width, inputs, outputs]."""

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]  # torch declares an attribute; its code only reads it
        """In torch's order, which costs nothing inside a program: XLA's own rearrangement undoes it."""
        return stored_weight(self).permute(_TORCHS)


class ConvLayout(Transform):
    """Kernels of a module's 2-dimensional convolutions in XLA's order.

    Args:
        module: as it is before any transform.
    """

    def __init__(self, module: torch.nn.Module):
        layers = (name for name, part in module.named_modules() if isinstance(part, torch.nn.Conv2d))
        self._kernels = {f"{name}.weight" for name in layers}

    def adapt(self, model: torch.nn.Module, groups: Sequence[Group] = ()) -> None:
        """Let convolutions take kernels as they are kept."""
        for name in self._kernels:
            layer = model.get_submodule(name.removesuffix(".weight"))
            kernel = stored_weight(layer).detach().permute(_KEPT)
            layer._parameters["weight"] = torch.nn.Parameter(kernel, requires_grad=False)
            own = type(layer)
            layer.__class__ = KeptConv2d if own is torch.nn.Conv2d else type(own.__name__, (KeptConv2d, own), {})

    def store(self, name: str, tensor: LazyTensor) -> Mapping[str, LazyTensor]:
        """A kernel [outputs, inputs, height, width] as [height, width, inputs, outputs]."""
        return {name: LazyTensor.of(tensor[:].permute(_KEPT)) if name in self._kernels else tensor}
