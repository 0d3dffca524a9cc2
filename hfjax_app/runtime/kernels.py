"""Kernels of convolutions, kept in the order of axes in which XLA on CPU takes them: height, width, inputs, outputs.

torch's order is outputs, inputs, height, width, and XLA would rearrange every kernel at every call: an eighth of the
processor time of a small UNet's step. On accelerators the compiler chooses the layout of arguments itself, and torch's
order stays. Does not cover transposed convolutions and those of one or three dimensions.
"""

from collections.abc import Collection
from typing import Any

import jax
import numpy as np
import torch

from hfjax_app.runtime.programs import Programs

ORDER = (2, 3, 1, 0)  # of torch's axes


def kernels_of(module: torch.nn.Module, programs: Programs) -> frozenset[str]:
    """The names of the weights that are rearranged: none where the programs are not for a CPU."""
    device = jax.local_devices()[0] if programs.mesh is None else programs.mesh.devices.flat[0]
    if device.platform != "cpu":
        return frozenset()
    return frozenset(f"{name}.weight" for name, part in module.named_modules() if isinstance(part, torch.nn.Conv2d))


def stored(weights: dict[str, Any], kernels: Collection[str]) -> dict[str, Any]:
    """The same arrays or shapes, kernels with the axes (height, width, inputs, outputs)."""

    def rearranged(weight: Any) -> Any:
        if isinstance(weight, jax.ShapeDtypeStruct):
            return weight.update(shape=tuple(weight.shape[axis] for axis in ORDER))
        return jax.device_put(np.ascontiguousarray(np.asarray(weight).transpose(ORDER)), weight.sharding)

    return {name: rearranged(weight) if name in kernels else weight for name, weight in weights.items()}


def as_torch(weights: dict[str, jax.Array], kernels: Collection[str]) -> dict[str, jax.Array]:
    """What `stored` was given, inside a program, where it costs nothing: XLA's own rearrangement undoes this one."""
    return {name: weight.transpose(3, 2, 0, 1) if name in kernels else weight for name, weight in weights.items()}
