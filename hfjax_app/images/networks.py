"""The networks of a pipeline and their weights on devices. The pipeline itself is not changed."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jax.sharding import AbstractMesh

from hfjax_app.images.checkpoint import Pipeline, network_names, text_encoder_names
from hfjax_app.runtime.checkpoints.hub import Checkpoint
from hfjax_app.runtime.dtype_policy import DTYPES, default_dtype
from hfjax_app.runtime.held_weights import shapes, weights_for
from hfjax_app.runtime.memory import held_bytes
from hfjax_app.runtime.mesh import PICTURE_AXES, SplitByName, replicated
from hfjax_app.runtime.model_transform import LazyTensor
from hfjax_app.runtime.module import Shapes, Weights
from hfjax_app.runtime.programs import Programs
from hfjax_app.runtime.seams.torchax import torch_dtype
from hfjax_app.runtime.transforms import image_transforms

_Module = TypeVar("_Module", bound=torch.nn.Module)


@dataclass(frozen=True, kw_only=True)
class Storage:
    """How a pipeline's weights are kept on its devices.

    Args:
        dtype: "float32", "bfloat16", "float16", or "auto": float32 on CPU, bfloat16 on TPU and GPU. Of the networks'
            computation too.
        quantize: "int8", or "none": of linear layers of the denoiser and of the text encoders.
        text_encoders: "device", or "host": their weights lie in the host's memory and go through the device, a few at a
            time, where a prompt is encoded. Pictures are the same.
        memory: bytes of a device, which decide whether they hold all weights or a part each; None: its own.
    """

    dtype: str = "auto"
    quantize: str = "none"
    text_encoders: str = "device"
    memory: int | None = None

    @property
    def in_words(self) -> str:
        """Such as "bfloat16", or "int8 and bfloat16"."""
        dtype = str(self.torch_dtype).removeprefix("torch.")
        return dtype if self.quantize == "none" else f"{self.quantize} and {dtype}"

    @property
    def torch_dtype(self) -> torch.dtype:
        return default_dtype() if self.dtype == "auto" else DTYPES[self.dtype]


USUAL = Storage()


def adapted_weights(
    programs: Programs,
    module: _Module,
    dtype: Any,
    files: Checkpoint | None,
    *,
    quantize: str = "none",
    splits: bool = False,
    on_host: bool = False,
) -> tuple[Weights | Shapes, _Module]:
    """A network's transformed weights on the programs' devices (or their shapes), and the network adapted to them.

    Args:
        programs: use the weights.
        module: of the pipeline; it is not changed.
        dtype: JAX's, of its floating-point parameters.
        files: the weights; None: they are in the module.
        quantize: as in `Storage`.
        splits: whether each device of a mesh that splits weights holds a part; else all.
        on_host: whether they lie in the host's memory.
    """
    transforms = image_transforms(module, programs.mesh, torch_dtype(dtype), quantize=quantize)
    placement = SplitByName(programs.mesh) if splits and programs.mesh is not None else None
    weights = weights_for(programs, module, transforms, checkpoint=files, placement=placement, on_host=on_host)
    adapted = without_weights(module)
    transforms.adapt(adapted)
    return weights, adapted


def network_bytes(pipeline: Pipeline, storage: Storage, devices: int = 1) -> dict[str, int]:
    """Bytes of each network's weights on each of the devices that they are split over, by the network's name.

    Of one in the host's memory the largest weight counts, which goes through the device as a whole.

    Args:
        pipeline: its weights are not read.
        storage: of the weights.
        devices: 1: each holds all weights.
    """
    mesh = AbstractMesh((1, 1, devices), PICTURE_AXES)
    found = {}
    on_host = text_encoder_names(pipeline) if storage.text_encoders == "host" else ()
    for name in network_names(pipeline):
        network, is_vae = pipeline.components[name], name == "vae"
        quantize = "none" if is_vae else storage.quantize
        transforms = image_transforms(network, mesh, storage.torch_dtype, quantize=quantize)
        placement = (lambda _name, _shape: replicated(mesh)) if is_vae else SplitByName(mesh)
        sizes = [held_bytes(shape) for shape in shapes(network, transforms, placement=placement).values()]
        found[name] = max(sizes) if name in on_host else sum(sizes)
    return found


def axes_on_devices(
    module: torch.nn.Module, programs: Programs, dtype: Any
) -> Callable[[str, tuple[int, ...]], tuple[int, ...]]:
    """The order in which `adapted_weights` holds the axes of a parameter, by its name and its shape in torch.

    Args:
        module: as there, before any transform.
        programs, dtype: as there.
    """
    transforms = image_transforms(module, programs.mesh, torch_dtype(dtype))

    def axes(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        strides = tuple(range(len(shape), 0, -1))  # they tell the axes apart; there are no values
        empty = torch.empty_strided(shape, strides, dtype=torch_dtype(dtype), device="meta")
        held = transforms.store(name, LazyTensor.of(empty))[name][...]
        return tuple(strides.index(stride) for stride in held.stride())

    return axes


def same_tensors(module: _Module) -> _Module:
    """A copy of the module with the same tensors. Replacing a tensor of one does not change the other.

    Nor does a hook: transformers adds some at a network's first call, which would run twice.
    """
    other = copy.copy(module)
    vars(other).update({name: copy.copy(value) for name, value in vars(module).items() if "_hooks" in name})
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
