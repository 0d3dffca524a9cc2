"""The networks of a pipeline and their weights on devices. The pipeline itself is not changed."""

import copy
from typing import Any, TypeVar

import torch

from hfjax_app.runtime.checkpoints.hub import Checkpoint
from hfjax_app.runtime.dtype_policy import Cast
from hfjax_app.runtime.held_weights import weights_for
from hfjax_app.runtime.model_transform import Transforms
from hfjax_app.runtime.module import Shapes, Weights
from hfjax_app.runtime.programs import Programs
from hfjax_app.runtime.seams.torchax import torch_dtype
from hfjax_app.runtime.transforms import image_transforms

_Module = TypeVar("_Module", bound=torch.nn.Module)


def adapted_weights(
    programs: Programs, module: _Module, dtype: Any, files: Checkpoint | None
) -> tuple[Weights | Shapes, _Module]:
    """A network's transformed weights on the programs' devices (or their shapes), and the network adapted to them.

    Args:
        programs: use the weights.
        module: a denoiser or an autoencoder; it is not changed.
        dtype: JAX's, of its floating-point parameters.
        files: the weights; None: they are in the module.
    """
    transforms = image_transforms(module, programs.mesh, torch_dtype(dtype))
    weights = weights_for(programs, module, transforms, checkpoint=files)
    adapted = without_weights(module)
    transforms.adapt(adapted)
    return weights, adapted


def text_encoder_weights(
    programs: Programs, encoder: torch.nn.Module, dtype: Any, files: Checkpoint | None
) -> Weights | Shapes:
    """As `adapted_weights`, for a text encoder, whose weights keep torch's layout."""
    return weights_for(programs, encoder, Transforms(Cast(encoder, torch_dtype(dtype))), checkpoint=files)


def same_tensors(module: _Module) -> _Module:
    """A copy of the module with the same tensors. Replacing a tensor of one does not change the other."""
    other = copy.copy(module)
    other._parameters, other._buffers = dict(module._parameters), dict(module._buffers)
    other._modules = {name: child and same_tensors(child) for name, child in module._modules.items()}
    return other


def fresh(module: _Module) -> _Module:
    """A copy, of a module without weights, for one trace: some keep tensors of a call, which belong to its trace."""
    return copy.deepcopy(module)


def without_weights(module: _Module) -> _Module:
    """A copy of the module with its parameters on the meta device, tied ones once, and the same buffers."""
    other = same_tensors(module)
    parameters: dict[int, torch.nn.Parameter] = {}
    for part in other.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                empty = torch.nn.Parameter(parameter.detach().to("meta"), requires_grad=False)
                part._parameters[name] = parameters.setdefault(id(parameter), empty)
    return other
