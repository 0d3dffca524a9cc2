"""The single list of transforms of a model and its weights for the devices at hand.

Devices and settings select the transforms once; chat/, images/ and sentiment/ use none by name. A new quantisation is
a file with a `Transform` and an entry in QUANTIZATIONS; any other transform is a file and a line in `chat_transforms`
or `image_transforms`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import torch
from jax.sharding import AbstractMesh, Mesh
from torchax import interop
from transformers.modeling_layers import GradientCheckpointingLayer

from hfjax_app.errors import RequestRejected
from hfjax_app.runtime.checkpoints.int8 import Int8
from hfjax_app.runtime.cpu.weights import Bf16Weights, ConvLayout, FusedLinear
from hfjax_app.runtime.dtype_policy import Cast
from hfjax_app.runtime.equal_blocks import EqualBlocks
from hfjax_app.runtime.experts import Experts, experts_of
from hfjax_app.runtime.head_packing import HeadPacking
from hfjax_app.runtime.mesh import is_one_cpu, platform_of
from hfjax_app.runtime.model_transform import Group, Transform, Transforms

# The values of `quantize`, besides "none".
# Each takes a model before any transform, and the dtype that it computes in; None: its own.
QUANTIZATIONS: Mapping[str, Callable[[torch.nn.Module, torch.dtype | None], Transform]] = {"int8": Int8}

_TPU_LANES = 128  # numbers that a TPU's vector register keeps side by side


def chat_transforms(
    model: torch.nn.Module, mesh: Mesh | None = None, *, quantize: str = "none", keep_bf16: bool = False
) -> Transforms:
    """The transforms of a causal language model, in order.

    Args:
        model: before any transform.
        mesh: the devices that the weights are split over; None: the default device.
        quantize: one of QUANTIZATIONS, or "none".
        keep_bf16: whether bfloat16 weights in the files stay bfloat16 on a CPU that computes in float32.

    Raises:
        RequestRejected: an unknown quantisation.
    """
    on_one_cpu = mesh is None and platform_of(mesh) == "cpu"
    mixture = bool(experts_of(model)) and (quantize != "none" or not on_one_cpu)
    kept = keep_bf16 and on_one_cpu and next(model.parameters()).dtype == torch.float32
    chosen = [
        _quantization(model, quantize),
        Bf16Weights(model) if kept else Cast(model),
        Experts(model, mesh, inputs_first=_is_tpu(mesh)) if mixture else None,
        FusedLinear() if on_one_cpu and quantize == "none" else None,
        LayerBarriers(),
    ]
    return Transforms(*(transform for transform in chosen if transform is not None))


def _quantization(model: torch.nn.Module, quantize: str, dtype: torch.dtype | None = None) -> Transform | None:
    if quantize not in ("none", *QUANTIZATIONS):
        raise RequestRejected(f"quantize = {quantize!r}: one of none, {', '.join(QUANTIZATIONS)}")
    return None if quantize == "none" else QUANTIZATIONS[quantize](model, dtype)


def image_transforms(
    module: torch.nn.Module, mesh: Mesh | AbstractMesh | None, dtype: torch.dtype | None, *, quantize: str = "none"
) -> Transforms:
    """The transforms of one network of a text-to-image pipeline, in order.

    Args:
        module: before any transform.
        mesh: the devices that run it, or an abstract one for counting bytes; None: the default device.
        dtype: of its floating-point parameters; None: unchanged.
        quantize: one of QUANTIZATIONS, or "none".

    Raises:
        RequestRejected: an unknown quantisation.
    """
    chosen = [
        _quantization(module, quantize, dtype),
        None if is_accelerated(mesh) else ConvLayout(module),
        Cast(module, dtype),
        EqualBlocks(),
    ]
    return Transforms(*(transform for transform in chosen if transform is not None))


def head_packing(mesh: Mesh | None, width: int | None = None) -> HeadPacking:
    """How small heads share the rows of a cache on these devices.

    Args:
        mesh: the devices; None: the default device. An abstract mesh is for counting bytes, which packing leaves equal.
        width: numbers that a device keeps side by side; None: the device's own, where packing saves copies.
    """
    if width is None:
        width = _TPU_LANES if _is_tpu(mesh) else 1
    return HeadPacking(width=width, devices=1 if mesh is None else mesh.size)


def _is_tpu(mesh: Mesh | AbstractMesh | None) -> bool:
    """Whether the devices are TPUs. An abstract mesh is for counting bytes, and has none."""
    return not isinstance(mesh, AbstractMesh) and platform_of(mesh) == "tpu"


def is_accelerated(mesh: Mesh | AbstractMesh | None) -> bool:
    """Whether programs get the sizes of an accelerator. An abstract mesh, for counting bytes, stands for one."""
    return isinstance(mesh, AbstractMesh) or platform_of(mesh) != "cpu"


def packs_arguments(mesh: Mesh | None) -> bool:
    """Whether programs that are called every few milliseconds get packed arguments."""
    return is_one_cpu(mesh)


def calls_at_once(mesh: Mesh | None) -> int:
    """The number of programs to run in parallel: two on a CPU, where a small one uses the second core half the time."""
    return 2 if is_one_cpu(mesh) else 1


class LayerBarriers(Transform):
    """Adds a barrier after each layer, so that each hidden state is computed once; weights are unchanged.

    The hidden states of a transformer are sums of the outputs of its layers. Additions are cheap, so XLA may repeat the
    whole sum at its last use, and must keep the outputs of all layers until then: two times 2 MB per layer for 256
    tokens of Llama 3.1 8B. Only layers that transformers marks as GradientCheckpointingLayer are covered.
    """

    def adapt(self, model: torch.nn.Module, groups: Sequence[Group] = ()) -> None:
        for module in model.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.register_forward_hook(_after_layer)


def _after_layer(_layer: torch.nn.Module, _inputs: tuple[Any, ...], output: Any) -> Any:
    """The layer's output with a barrier: hidden states, or a tuple that starts with them."""
    if isinstance(output, tuple):
        return (_barrier(output[0]), *output[1:])
    return _barrier(output)


def _barrier(hidden: torch.Tensor) -> torch.Tensor:
    same: torch.Tensor = interop.call_jax(jax.lax.optimization_barrier, hidden)
    return same
