"""Kernels of convolutions, kept as XLA on CPU takes them best.

torch's order of axes is outputs, inputs, height, width, and XLA would rearrange every kernel at every call: an eighth
of the processor time of a small UNet's step. So they are kept as height, width, inputs, outputs; and those of 3x3 with
many channels as `winograd.py` takes them. On accelerators the compiler chooses the layout of arguments itself, and
torch's order stays. Does not cover transposed convolutions and those of one or three dimensions.
"""

from collections.abc import Mapping
from typing import Any

import jax
import torch
from torchax.ops import mappings

from hfjax_app.runtime.cpu import winograd
from hfjax_app.runtime.mesh import platform_of
from hfjax_app.runtime.programs import Programs

# Names of weights, and whether each is kept for Winograd's convolution.
Kernels = Mapping[str, bool]

_ORDER = (2, 3, 1, 0)  # of torch's axes


def kernels_of(module: torch.nn.Module, programs: Programs, *, transform: bool = False) -> Kernels:
    """The weights that are not kept as torch has them: none where the programs are not for a CPU.

    Args:
        module: its 2-dimensional convolutions are looked for.
        programs: that they are for.
        transform: whether to keep some for Winograd's convolution. Its tiles take four times the image's memory, and
            its sums would lose digits of half precision.
    """
    if platform_of(programs.mesh) != "cpu":
        return {}
    return {
        f"{name}.weight": transform and _gains(part)
        for name, part in module.named_modules()
        if isinstance(part, torch.nn.Conv2d)
    }


def _gains(layer: torch.nn.Conv2d) -> bool:
    """Whether a layer is a plain 3x3 convolution with many channels."""
    form = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.groups, layer.padding_mode)
    plain = type(layer) is torch.nn.Conv2d and form == ((3, 3), (1, 1), (1, 1), (1, 1), 1, "zeros")
    return plain and min(layer.in_channels, layer.out_channels) >= winograd.LEAST_CHANNELS


def kept(kernel: torch.Tensor, *, transformed: bool) -> torch.Tensor:
    """A kernel in torch's order, as it is kept.

    Args:
        kernel: [outputs, inputs, height, width].
        transformed: what `Kernels` says of it.
    """
    return winograd.transformed(kernel) if transformed else kernel.permute(_ORDER)


def stored(weights: dict[str, Any], kernels: Kernels) -> dict[str, Any]:
    """The same arrays, each on one device, or shapes, with the kernels as they are kept."""

    def rearranged(weight: Any, transformed: bool) -> Any:
        if isinstance(weight, jax.ShapeDtypeStruct):
            outputs, inputs, *size = weight.shape
            return weight.update(shape=(16, inputs, outputs) if transformed else (*size, inputs, outputs))
        changed = kept(torch.from_dlpack(weight), transformed=transformed)
        return jax.device_put(mappings.t2j(changed.contiguous()), weight.sharding)

    return {name: rearranged(weight, kernels[name]) if name in kernels else weight for name, weight in weights.items()}


def as_torch(weights: dict[str, jax.Array], kernels: Kernels) -> dict[str, jax.Array]:
    """What `stored` was given, inside a program, where it costs nothing: XLA's own rearrangement undoes this one.

    Transformed kernels stay what they are, three axes, by which the lowering of convolutions knows them.
    """
    plain = {name for name, transformed in kernels.items() if not transformed}
    return {name: weight.transpose(3, 2, 0, 1) if name in plain else weight for name, weight in weights.items()}
