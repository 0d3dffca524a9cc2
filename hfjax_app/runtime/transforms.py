"""The one list of what is done to a model and to its weights for the devices at hand.

Chosen once, by devices and settings; chat/, images/ and sentiment/ take what they get and know none by name. One more
quantisation is one more file with a `Transform` and one more entry in QUANTIZATIONS; another change is one more line in
`chat_transforms` or `image_transforms`.
"""

from collections.abc import Callable, Mapping

import torch
from jax.sharding import AbstractMesh, Mesh

from hfjax_app.errors import RequestRejected
from hfjax_app.runtime.checkpoints.int8 import Int8
from hfjax_app.runtime.cpu.bf16_weights import Bf16Weights
from hfjax_app.runtime.cpu.conv_layout import ConvLayout
from hfjax_app.runtime.cpu.fused_linear import FusedLinear
from hfjax_app.runtime.dtype_policy import Cast
from hfjax_app.runtime.head_packing import HeadPacking
from hfjax_app.runtime.mesh import is_one_cpu, platform_of
from hfjax_app.runtime.model_transform import Transform, Transforms
from hfjax_app.runtime.tpu.layer_barriers import LayerBarriers

# What `quantize` may name, besides "none".
QUANTIZATIONS: Mapping[str, Callable[[torch.nn.Module], Transform]] = {"int8": Int8}

_TPU_LANES = 128  # numbers that a TPU's vector register keeps side by side


def chat_transforms(
    model: torch.nn.Module, mesh: Mesh | None = None, *, quantize: str = "none", keep_bf16: bool = False
) -> Transforms:
    """What is done to a causal language model, in order.

    Args:
        model: as it is before any of it.
        mesh: the devices that hold the weights together; None: the default device.
        quantize: one of QUANTIZATIONS, or "none".
        keep_bf16: whether weights that the files have in bfloat16 stay so on a CPU that computes in float32.

    Raises:
        RequestRejected: no such quantisation.
    """
    if quantize not in ("none", *QUANTIZATIONS):
        raise RequestRejected(f"quantize = {quantize!r}: one of none, {', '.join(QUANTIZATIONS)}")
    on_one_cpu = mesh is None and platform_of(mesh) == "cpu"
    kept = keep_bf16 and on_one_cpu and next(model.parameters()).dtype == torch.float32
    chosen = [
        QUANTIZATIONS[quantize](model) if quantize != "none" else None,
        Bf16Weights(model) if kept else Cast(model),
        FusedLinear() if on_one_cpu and quantize == "none" else None,
        LayerBarriers(),
    ]
    return Transforms(*(transform for transform in chosen if transform is not None))


def image_transforms(module: torch.nn.Module, mesh: Mesh | None, dtype: torch.dtype | None) -> Transforms:
    """What is done to one network of a text-to-image pipeline, in order.

    Args:
        module: as it is before any of it.
        mesh: the devices that it runs on; None: the default device.
        dtype: of its floating-point parameters; None: as they are.
    """
    chosen = [
        ConvLayout(module) if platform_of(mesh) == "cpu" else None,
        Cast(module, dtype),
    ]
    return Transforms(*(transform for transform in chosen if transform is not None))


def head_packing(mesh: Mesh | None, width: int | None = None) -> HeadPacking:
    """How narrow heads share the rows of a cache on these devices.

    Args:
        mesh: the devices; None: the default device. An abstract one is for counting bytes, the same with packing.
        width: numbers that a device keeps side by side; None: the device's own, where packing saves copies.
    """
    if width is None:
        width = _TPU_LANES if not isinstance(mesh, AbstractMesh) and platform_of(mesh) == "tpu" else 1
    return HeadPacking(width=width, devices=1 if mesh is None else mesh.size)


def packs_arguments(mesh: Mesh | None) -> bool:
    """Whether programs that are called every few milliseconds should have few arguments."""
    return is_one_cpu(mesh)


def calls_at_once(mesh: Mesh | None) -> int:
    """Programs that the devices run side by side: two on a CPU, where a small one leaves the second core idle half the
    time."""
    return 2 if is_one_cpu(mesh) else 1
