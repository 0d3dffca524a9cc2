"""The arrays of a model on the devices: read from its files, taken from memory, or planned as shapes.

All three apply the same transforms, so that a plan equals what is loaded.

Each argument of a call costs its caller two microseconds before the device starts, and more than half of a
convolutional network's weights are 1-D (biases, scales of norms). For programs that are called every few milliseconds
`transforms.py` chooses to pack them into one argument. Inside the program each is a slice, which XLA reads in place; a
slice of a matrix would be a copy.
"""

from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import torch

from hfjax_app.runtime.checkpoints.hub import Checkpoint
from hfjax_app.runtime.checkpoints.safetensors_reader import Placement, on_one_device, read
from hfjax_app.runtime.memory import HOST
from hfjax_app.runtime.mesh import replicated
from hfjax_app.runtime.model_transform import LazyTensor, Transforms
from hfjax_app.runtime.module import Shapes, Weights
from hfjax_app.runtime.programs import Programs
from hfjax_app.runtime.seams.torchax import array_of, jax_dtype


def shapes(
    model: torch.nn.Module,
    transforms: Transforms,
    *,
    placement: Placement = on_one_device,
    saved_dtype: torch.dtype | None = None,
) -> Shapes:
    """The shapes, dtypes and shardings of what `read` returns: enough to compile, without a checkpoint.

    Args:
        model: before any transform.
        transforms: as in `read`.
        placement: as in `read`.
        saved_dtype: of the floating-point parameters in the files; None: as in the model.
    """
    found: Shapes = {}

    def add(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        held = jax.dtypes.canonicalize_dtype(jax_dtype(dtype))  # int64, torch's default, becomes int32
        found[name] = jax.ShapeDtypeStruct(shape, held, sharding=placement(name, shape))

    for name, parameter in model.named_parameters():
        dtype = saved_dtype if saved_dtype is not None and parameter.is_floating_point() else parameter.dtype
        saved = torch.empty(parameter.shape, dtype=dtype, device="meta")
        for key, held in transforms.store(name, LazyTensor.of(saved)).items():
            add(key, held.shape, held.dtype)
    for name, buffer in model.named_buffers():
        add(name, tuple(buffer.shape), buffer.dtype)
    return found


def device_weights(model: torch.nn.Module, transforms: Transforms, *, placement: Placement = on_one_device) -> Weights:
    """The weights of a model that torch has in memory, as arrays on the devices.

    An array that no transform changed may share its memory with the tensor: do not write to the model afterwards.

    Args:
        model: before any transform, on the CPU.
        transforms: as in `read`.
        placement: as in `read`.
    """
    weights: Weights = {}
    for name, parameter in model.named_parameters():
        for key, tensor in transforms.store(name, LazyTensor.of(parameter.detach())).items():
            weights[key] = jax.device_put(array_of(tensor[...].contiguous()), placement(key, tensor.shape))
    for name, buffer in model.named_buffers():
        weights[name] = jax.device_put(array_of(buffer), placement(name, tuple(buffer.shape)))
    return weights


def weights_for(
    programs: Programs,
    module: torch.nn.Module,
    transforms: Transforms,
    *,
    checkpoint: Checkpoint | None = None,
    placement: Placement | None = None,
    on_host: bool = False,
) -> Weights | Shapes:
    """A module's weights on the programs' devices; for planned programs their shapes.

    Args:
        programs: the programs that take the weights.
        module: before any transform; its weights, if it has any, on the CPU.
        transforms: as in `read`.
        checkpoint: the files of the weights; None: the module's own weights.
        placement: as in `read`; None: whole on each device.
        on_host: whether they lie in the host's memory. Programs copy each to the device where they use it.

    Raises:
        ModelUnavailable: as `read` does, where a checkpoint is given.
    """
    mesh = programs.mesh
    if placement is None:
        placement = on_one_device if mesh is None else lambda name, shape: replicated(mesh)
    if on_host:
        placement = _in_host_memory(placement)
    if programs.planned:
        return shapes(module, transforms, placement=placement)
    if checkpoint is not None:
        return read(module, checkpoint, transforms=transforms, placement=placement)
    return device_weights(module, transforms, placement=placement)


def _in_host_memory(placement: Placement) -> Placement:
    return lambda name, shape: placement(name, shape).with_memory_kind(HOST)


class PackedArguments:
    """Weights with one array for all 1-D weights of a dtype.

    Args:
        weights: on one device, or their shapes.
        packs: whether to pack.
        apart: names of weights that are not packed, because they change alone.

    Attributes:
        weights: the weights that the program takes.
    """

    def __init__(self, weights: Mapping[str, Any], *, packs: bool, apart: Collection[str] = ()):
        groups: dict[str, list[Any]] = {}
        # By name: the packed array of a 1-D weight, its start, and its length.
        self._packed: dict[str, tuple[str, int, int]] = {}
        for name, weight in weights.items():
            if packs and weight.ndim == 1 and name not in apart:
                group = f"packed {weight.dtype}"  # no weight's name has a space
                members = groups.setdefault(group, [])
                self._packed[name] = (group, sum(member.size for member in members), weight.size)
                members.append(weight)
        rest = {name: weight for name, weight in weights.items() if name not in self._packed}
        self.weights: dict[str, Any] = rest | {group: _joined(members) for group, members in groups.items()}

    def unpack(self, weights: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """The weights by their original names; called inside a program.

        Args:
            weights: as `self.weights`.
        """
        groups = {group for group, _, _ in self._packed.values()}
        rest = {name: weight for name, weight in weights.items() if name not in groups}
        return rest | {
            name: jax.lax.slice(weights[group], (start,), (start + size,))
            for name, (group, start, size) in self._packed.items()
        }


def _joined(members: list[Any]) -> Any:
    first = members[0]
    if isinstance(first, jax.ShapeDtypeStruct):
        return first.update(shape=(sum(member.size for member in members),))
    return jnp.concatenate(members)
