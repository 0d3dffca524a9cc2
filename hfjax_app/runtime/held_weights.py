"""What devices hold of a model: from its files, from memory, or planned as shapes. All three take the same way through
the transforms, so that what is planned is what is loaded.
"""

import jax
import torch
from torchax.ops import mappings

from hfjax_app.runtime.checkpoints.hub import Checkpoint
from hfjax_app.runtime.checkpoints.safetensors_reader import Placement, on_one_device, read
from hfjax_app.runtime.mesh import replicated
from hfjax_app.runtime.model_transform import LazyTensor, Transforms
from hfjax_app.runtime.module import Shapes, Weights
from hfjax_app.runtime.programs import Programs


def shapes(
    model: torch.nn.Module,
    transforms: Transforms,
    *,
    placement: Placement = on_one_device,
    saved_dtype: torch.dtype | None = None,
) -> Shapes:
    """What `read` would return, as shapes with their dtypes and shardings: enough to compile, without a checkpoint.

    Args:
        model: as it is before any transform.
        transforms: as `read` takes them.
        placement: as `read` takes it.
        saved_dtype: of the floating-point parameters in the files; None: as in the model.
    """
    found: Shapes = {}

    def add(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        found[name] = jax.ShapeDtypeStruct(shape, mappings.t2j_dtype(dtype), sharding=placement(name, shape))

    for name, parameter in model.named_parameters():
        dtype = saved_dtype if saved_dtype is not None and parameter.is_floating_point() else parameter.dtype
        saved = torch.empty(parameter.shape, dtype=dtype, device="meta")
        for key, held in transforms.store(name, LazyTensor.of(saved)).items():
            add(key, held.shape, held.dtype)
    for name, buffer in model.named_buffers():
        add(name, tuple(buffer.shape), buffer.dtype)
    return found


def held(model: torch.nn.Module, transforms: Transforms, *, placement: Placement = on_one_device) -> Weights:
    """The weights of a model that torch has in memory, as arrays on the devices. Without transforms that change them
    an array may share its memory with the tensor: don't write to the model afterwards.

    Args:
        model: as it is before any transform, on the CPU.
        transforms: as `read` takes them.
        placement: as `read` takes it.
    """
    weights: Weights = {}
    for name, parameter in model.named_parameters():
        for key, tensor in transforms.store(name, LazyTensor.of(parameter.detach())).items():
            weights[key] = jax.device_put(mappings.t2j(tensor[...].contiguous()), placement(key, tensor.shape))
    for name, buffer in model.named_buffers():
        weights[name] = jax.device_put(mappings.t2j(buffer), placement(name, tuple(buffer.shape)))
    return weights


def weights_for(
    programs: Programs, module: torch.nn.Module, transforms: Transforms, *, checkpoint: Checkpoint | None = None
) -> Weights | Shapes:
    """A module's weights, all of them on each of the programs' devices; for planned programs their shapes.

    Args:
        programs: that they are for.
        module: as it is before any transform; its weights on the CPU, if it has any.
        transforms: as `read` takes them.
        checkpoint: the files of the weights; None: they are the module's own.

    Raises:
        ModelUnavailable: from a checkpoint, as `read` does.
    """
    mesh = programs.mesh
    placement = on_one_device if mesh is None else lambda name, shape: replicated(mesh)
    if programs.planned:
        return shapes(module, transforms, placement=placement)
    if checkpoint is not None:
        return read(module, checkpoint, transforms=transforms, placement=placement)
    return held(module, transforms, placement=placement)
