"""Convolution kernels in HWIO order, the layout that XLA uses on a CPU.

torch's order is OIHW (outputs, inputs, height, width), and XLA would transpose every kernel at every call: an eighth of
the processor time of a small UNet's step. On accelerators the compiler chooses the layout of arguments itself, and
torch's order stays. Does not cover transposed convolutions and those of one or three dimensions.
"""

from collections.abc import Mapping, Sequence

import torch

from hfjax_app.runtime.model_transform import Group, LazyTensor, Transform, stored_weight

_TO_HWIO = (2, 3, 1, 0)
_TO_OIHW = (3, 2, 0, 1)


class HwioConv2d(torch.nn.Conv2d):
    """A convolution whose kernel is [height, width, inputs, outputs]."""

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]  # torch declares an attribute; its code only reads it
        """The kernel in torch's order; free inside a program, because XLA's own transposition undoes it."""
        return stored_weight(self).permute(_TO_OIHW)


class ConvLayout(Transform):
    """Stores the kernels of a module's 2-D convolutions in HWIO order.

    Args:
        module: before any transform.
    """

    def __init__(self, module: torch.nn.Module):
        layers = (name for name, part in module.named_modules() if isinstance(part, torch.nn.Conv2d))
        self._kernels = {f"{name}.weight" for name in layers}

    def adapt(self, model: torch.nn.Module, groups: Sequence[Group] = ()) -> None:
        """Make convolutions accept kernels in HWIO order."""
        for name in self._kernels:
            layer = model.get_submodule(name.removesuffix(".weight"))
            kernel = stored_weight(layer).detach().permute(_TO_HWIO)
            layer._parameters["weight"] = torch.nn.Parameter(kernel, requires_grad=False)
            own = type(layer)
            layer.__class__ = HwioConv2d if own is torch.nn.Conv2d else type(own.__name__, (HwioConv2d, own), {})

    def store(self, name: str, tensor: LazyTensor) -> Mapping[str, LazyTensor]:
        """A kernel [outputs, inputs, height, width] as [height, width, inputs, outputs]."""
        return {name: LazyTensor.of(tensor[:].permute(_TO_HWIO)) if name in self._kernels else tensor}
