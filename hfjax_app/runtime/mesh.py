"""One model over several devices: which array is split over them, and how.

Tensor parallelism follows transformers' plan for each architecture (`config.base_model_tp_plan`): of two consecutive
projections the first is split by its outputs and the second by its inputs, so that a layer needs one all-reduce after
attention and one after the MLP. An image model that one device can hold is whole on each, and the devices share the
guidance pair and the tokens of a picture; a larger one is split over all devices by the usual names of such
projections. XLA's partitioner inserts the collectives; shardings do not change results. `process.py` joins the hosts of
a TPU slice.
"""

import math
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import torch
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from hfjax_app.runtime.seams.transformers import holds_experts

if TYPE_CHECKING:  # the import takes a second
    from transformers import PreTrainedModel

AXIS = "model"
ROWS = "rows"  # the axis of an image model's mesh over which the rows of a call are split
TOKENS = "tokens"  # and that over which the tokens of its pictures are, see token_parts.py
PICTURE_AXES = (ROWS, TOKENS, AXIS)
PAIR = 2  # devices that share the two rows of a guidance pair
WHOLE = 0.75  # of a device's memory that the weights of an image model may take there; pictures take the rest
SMALL = 1 << 30  # bytes of weights: of a smaller image model a device computes all tokens before it could share them

# Numbers of a table, such as Stable Diffusion 3.5's of positions (226 million); smaller ones are read in each layer.
LARGE_TABLE = 1 << 22

# The ends of the names of layers whose inputs are the outputs of a layer of the same block: attention's and the MLP's
# second projections in diffusers and transformers.
_SECOND = re.compile(
    r"(^|\.)(to_out|to_out\.\d+|to_add_out|net\.[1-9]\d*|proj_out|linear_out|linear_2|conv_point"
    r"|o|o_proj|out_proj|wo|w2|fc2|down_proj)$"
)


def serving_mesh(devices: Sequence[Any] | None = None) -> Mesh | None:
    """The mesh of a model that is served by these devices, real or of a topology; None: all of this process.

    Returns:
        The devices as one axis; None for a single CPU or GPU, jax's default device. A single TPU has a mesh, as in
        programs that are compiled where it is not.
    """
    found = jax.local_devices() if devices is None else devices
    return mesh_of(found) if len(found) > 1 or found[0].platform == "tpu" else None


def picture_mesh(devices: Sequence[Any], weights: int, memory: int | None) -> Mesh | None:
    """The mesh of an image model, with the axes ROWS, TOKENS and AXIS: see `picture_parts`.

    Args:
        devices: real or of a topology.
        weights: bytes of all weights.
        memory: bytes that a device has for arrays; None: enough.

    Returns:
        None for a single CPU or GPU, as `serving_mesh`.
    """
    parts = picture_parts(len(devices), weights, memory)
    devices = devices[: math.prod(parts)]
    return None if serving_mesh(devices) is None else Mesh(np.array(devices).reshape(parts), PICTURE_AXES)


def picture_parts(devices: int, weights: int, memory: int | None) -> tuple[int, int, int]:
    """How many devices an image model has along ROWS, TOKENS and AXIS.

    Pairs of devices share the rows of a guidance pair, and as many as there are share the tokens of each row: of a call
    with one row all. Each holds all weights. Two devices are enough for a small model. Where one has too little memory
    for the weights, all devices hold a part of them instead.

    Args: as for `picture_mesh`, but the number of devices.
    """
    if splits_pictures(devices, weights, memory):
        return 1, 1, devices
    if weights < SMALL:
        return min(PAIR, devices), 1, 1
    pair = math.gcd(PAIR, devices)
    return pair, devices // pair, 1


def splits_pictures(devices: int, weights: int, memory: int | None) -> bool:
    """Whether an image model is split over this number of devices; arguments as of `picture_mesh`."""
    return devices > 1 and memory is not None and weights > WHOLE * memory


def mesh_of(devices: Any) -> Mesh:
    """The devices, real or of a planned topology, as one axis."""
    return Mesh(np.array(devices), (AXIS,))


def devices_in_words() -> str:
    """The local devices, such as "4 x TPU v5 lite" or "CPU". Starts jax."""
    devices = jax.local_devices()
    kind = "CPU" if devices[0].platform == "cpu" else devices[0].device_kind
    return kind if len(devices) == 1 else f"{len(devices)} x {kind}"


def platform_of(mesh: Mesh | None) -> str:
    """ "cpu", "gpu" or "tpu": the platform of a mesh, or without a mesh of this process."""
    platform: str = (jax.local_devices()[0] if mesh is None else mesh.devices.flat[0]).platform
    return platform


def is_one_cpu(mesh: Mesh | None) -> bool:
    """Whether programs run on a single CPU device."""
    return (mesh is None or mesh.size == 1) and platform_of(mesh) == "cpu"


def device_memory() -> int | None:
    """Bytes that each local device has for arrays; None if unknown. CPU devices share the host's memory."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // jax.local_device_count()
    return (device.memory_stats() or {}).get("bytes_limit")


def accelerator_memory() -> int | None:
    """`device_memory` of an accelerator; None on CPU devices, which share their memory with the rest of the host."""
    return None if jax.local_devices()[0].platform == "cpu" else device_memory()


def replicated(mesh: Mesh | AbstractMesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def split(mesh: Mesh | AbstractMesh, shape: tuple[int, ...], axis: int, over: str = AXIS) -> NamedSharding:
    """Split along one axis over an axis of the mesh where its devices divide it evenly, else replicated."""
    if len(shape) <= axis or shape[axis] % mesh.shape[over]:
        return replicated(mesh)
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, over))


class SplitByName:
    """The sharding of each weight of any network: call it with the weight's torch name and shape.

    A layer is split by its outputs, or by its inputs where its name says that it is the second of two. Where the
    devices do not divide this axis it is split by another one. Large tables are split by their width: what a program
    reads are rows. Norms, small tables, the biases of second layers, and weights without an axis that is divided evenly
    are whole on each device.

    Args:
        mesh: with the axis AXIS; it may be abstract.
    """

    def __init__(self, mesh: Mesh | AbstractMesh):
        self.mesh = mesh

    def __call__(self, name: str, shape: tuple[int, ...]) -> NamedSharding:
        """The sharding of a weight, a bias, or the scale of an int8 weight."""
        layer, _, kind = name.rpartition(".")
        is_second = bool(_SECOND.search(layer))
        if len(shape) == 1 and kind in ("bias", "scale") and not is_second:
            return split(self.mesh, shape, 0)
        if len(shape) < 2 or (kind != "weight" and math.prod(shape) < LARGE_TABLE):
            return replicated(self.mesh)
        if kind != "weight":
            divides = shape[-1] % self.mesh.shape[AXIS] == 0
            return split(self.mesh, shape, len(shape) - 1) if divides else replicated(self.mesh)
        axes = sorted(range(len(shape)), key=lambda axis: axis != int(is_second))
        divided = (axis for axis in axes if shape[axis] % self.mesh.shape[AXIS] == 0)
        return split(self.mesh, shape, next(divided, 0))


def _usual_plan() -> dict[str, str]:
    """The plan of the architecture whose names most others have."""
    from transformers import LlamaConfig

    return LlamaConfig.base_model_tp_plan or {}


def _is_mixture(model: torch.nn.Module, name: str) -> bool:
    """Whether the module that holds this parameter has transformers' interface for experts."""
    return holds_experts(model.get_submodule(name.rpartition(".")[0]))


class TensorParallel:
    """The sharding of each weight of a model: call it with the weight's torch name and shape.

    Attention projections are split in whole heads only; where the devices do not divide the heads, they are
    replicated. Weights that the architecture's plan does not name are replicated too. Embeddings and the output layer
    are split along the vocabulary. Of a mixture's experts each device holds some whole ones, or, where the devices do
    not divide their number, a part of each as the plan says.

    Args:
        mesh: the devices, one axis.
        model: a transformers model; its weights may be on the meta device.
    """

    def __init__(self, mesh: Mesh, model: "PreTrainedModel"):
        self.mesh = mesh
        text = model.config.get_text_config(decoder=True) if hasattr(model.config, "get_text_config") else model.config
        # An architecture without a plan may have the usual names (gpt-oss).
        self._plan: dict[str, str] = getattr(text, "base_model_tp_plan", None) or _usual_plan()
        self._vocabulary = {
            name
            for name, module in model.named_modules()
            if module is model.get_input_embeddings() or module is model.get_output_embeddings()
        }
        # A module with parameters of three axes that a plan names: its experts are their first axis.
        self._experts = {
            name.rpartition(".")[0]: parameter.shape[0]
            for name, parameter in model.named_parameters()
            if parameter.ndim == 3 and (self._kind(name) or _is_mixture(model, name))
        }
        # The parent of a projection is the attention module, which has the head_dim.
        self._head = {
            name: getattr(model.get_submodule(name.rpartition(".")[0]), "head_dim", 1)
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear)
        }

    def __call__(self, name: str, shape: tuple[int, ...]) -> NamedSharding:
        """The sharding of a weight, a bias, or the scale of an int8 weight."""
        layer = name.rpartition(".")[0]
        if (experts := self._experts.get(layer)) is not None:
            return self._of_experts(self._kind(name), experts, shape)
        if layer in self._vocabulary:
            return split(self.mesh, shape, 0)
        kind, head = self._kind(layer), self._head.get(layer, 1)
        if kind.startswith("colwise") and len(shape) <= 2 and shape[0] % (head * self.mesh.size) == 0:
            return split(self.mesh, shape, 0)
        if kind.startswith("rowwise") and len(shape) == 2 and shape[1] % (head * self.mesh.size) == 0:
            return split(self.mesh, shape, 1)
        return replicated(self.mesh)

    def _of_experts(self, kind: str, experts: int, shape: tuple[int, ...]) -> NamedSharding:
        if shape[0] == experts and experts % self.mesh.size == 0:
            return split(self.mesh, shape, 0)
        if len(shape) < 3:
            return replicated(self.mesh)
        return split(self.mesh, shape, 1 if kind.endswith("colwise") else 2)

    def _kind(self, layer: str) -> str:
        """The plan's entry for a layer or a parameter; its keys start below the base model, whose name differs."""
        pattern = re.sub(r"\.\d+(?=\.|$)", ".*", layer)
        while pattern:
            if pattern in self._plan:
                return self._plan[pattern]
            pattern = pattern.partition(".")[2]
        return ""
