"""int8 weights for linear layers and experts: a quarter of float32's bytes to read for each token, half of bfloat16's.

Each output channel has a scale, the largest magnitude of its row divided by 127, so that nothing is clipped.
Embeddings, norms, biases, routers and other layers keep their dtype. An output layer that is tied to the
embedding gets int8 weights beside the embedding: a step then reads one row of the embedding per token and not all of
it, usually the largest weight. Activations are not quantised. `safetensors_reader.py` quantises tensor by
tensor.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torchax import interop

from hfjax_app.runtime import lone_rows
from hfjax_app.runtime.cpu.linear import int8_dot_on_cpu
from hfjax_app.runtime.dtype_policy import kept_in_float32
from hfjax_app.runtime.experts import SCALE, experts_of, matrices_of
from hfjax_app.runtime.model_transform import Group, LazyTensor, Transform

_BLOCK_BYTES = 4 << 20  # of the part of a weight that is quantised at a time, as float32


class Int8Linear(torch.nn.Module):
    """A linear layer with int8 weights [outputs, inputs] and a float32 scale [outputs]; on the meta device.

    Some architectures read a layer's weights or their dtype directly (Mamba's `dt_proj.weight @ ...`): for them
    `weight` is the dequantised one.

    Args:
        linear: the layer.
        dtype: of `weight`; None: the layer's.
    """

    scale: torch.Tensor

    def __init__(self, linear: torch.nn.Linear, dtype: torch.dtype | None = None):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._dtype = dtype or linear.weight.dtype
        self.register_buffer("weight", torch.empty(linear.weight.shape, dtype=torch.int8, device="meta"))
        self.register_buffer("scale", torch.empty(linear.out_features, dtype=torch.float32, device="meta"))
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = interop.call_jax(int8_dot, x, self._buffers["weight"], self.scale)
        return out if self.bias is None else out + self.bias

    @property
    def weight(self) -> torch.Tensor:
        """[outputs, inputs] in the model's dtype; computed only where more than the shape and the dtype is used."""
        weight = self._buffers.get("weight")
        if weight is None:
            raise AttributeError("weight")  # while it is being registered
        return (weight * self.scale[:, None]).to(self._dtype)


def sources(model: torch.nn.Module) -> dict[str, str]:
    """The int8 weights of a model's linear layers: the name of each, and the name of the parameter that it rounds.

    The names differ where several modules share a parameter, which has the name of the first module. If that one is an
    embedding, the parameter stays beside the int8 weights. If an embedding comes after the linear layer, the layer is
    not quantised, because one name can't stand for both. A layer that stays float32 even in a half-precision model is
    not quantised either.
    """
    exact = kept_in_float32(model, torch.float16)
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    linears = {
        f"{name}.weight": id(module.weight) for name, module in model.named_modules() if type(module) is torch.nn.Linear
    }
    found = {name: first[key] for name, key in linears.items() if key not in embeddings or first[key] != name}
    return {name: source for name, source in found.items() if name not in exact}


def expert_matrices(model: torch.nn.Module) -> dict[str, bool]:
    """The matrices [experts, ...] of a mixture by name, and whether each expert's has its inputs first.

    They are found by their module: it is computed by a chosen function, or it has such matrices and nothing else (Llama
    4's, whose inputs come first).
    """
    chosen = experts_of(model)
    others = {
        name: module
        for name, module in model.named_modules()
        if name not in chosen and module._parameters and len(matrices_of(module)) == len(module._parameters) > 1
    }
    return {
        f"{name}.{matrix}": getattr(module, "is_transposed", True)
        for name, module in (*chosen.items(), *others.items())
        for matrix in matrices_of(module)
    }


class Int8(Transform):
    """Quantises the weights of linear layers and the matrices of experts to int8, one at a time.

    Args:
        model: before any transform.
        dtype: that it computes in; None: that of its weights.
    """

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype | None = None):
        self._dtype = dtype
        self._made_of: dict[str, list[str]] = {}
        for name, source in sources(model).items():
            self._made_of.setdefault(source, []).append(name)
        self._experts = expert_matrices(model)

    def adapt(self, model: torch.nn.Module, groups: Sequence[Group] = ()) -> None:
        """Replace each linear layer by an Int8Linear."""
        for name in sources(model):
            path, _, leaf = name.removesuffix(".weight").rpartition(".")
            parent = model.get_submodule(path)
            setattr(parent, leaf, Int8Linear(getattr(parent, leaf), self._dtype))
        chosen = experts_of(model).values()
        for name, inputs_first in expert_matrices(model).items():
            path, _, leaf = name.rpartition(".")
            module = model.get_submodule(path)
            _hold_int8(module, leaf, inputs_first, read_directly=module not in chosen)

    def store(self, name: str, tensor: LazyTensor) -> Mapping[str, LazyTensor]:
        """The int8 values and scales of each layer that reads a parameter, and itself if an embedding reads it too."""
        if name in self._experts:
            values, scale = quantize_experts(tensor[:], self._experts[name])
            return {name: LazyTensor.of(values), name + SCALE: LazyTensor.of(scale)}
        if name not in self._made_of:
            return {name: tensor}
        values, scale = quantize(tensor[:])
        made: dict[str, LazyTensor] = {}
        for key in self._made_of[name]:
            made |= {key: LazyTensor.of(values), scale_name(key): LazyTensor.of(scale)}
        return made if name in made else {name: tensor, **made}


def scale_name(weight_name: str) -> str:
    return weight_name.removesuffix("weight") + "scale"


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight [outputs, inputs] as int8, and its scales, float32 [outputs], such that weight ~ int8 * scale[:, None].

    A row of zeros has the scale 1. Works in blocks of rows, without a float32 copy of the whole weight.
    """
    rows, columns = weight.shape
    quantized = torch.empty((rows, columns), dtype=torch.int8, device=weight.device)
    scales = torch.empty(rows, dtype=torch.float32, device=weight.device)
    if weight.is_meta:
        return quantized, scales
    step = max(1, _BLOCK_BYTES // (4 * columns))
    for start in range(0, rows, step):
        block = weight[start : start + step].to(torch.float32)
        scale = block.abs().amax(1) / 127
        scale[scale == 0] = 1
        quantized[start : start + step] = (block / scale[:, None]).round_().to(torch.int8)
        scales[start : start + step] = scale
    return quantized, scales


def quantize_experts(matrices: torch.Tensor, inputs_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Matrices [experts, ...] as int8, and their scales, float32 [experts, outputs], see `quantize`."""
    rows = matrices.transpose(1, 2) if inputs_first else matrices
    values, scales = quantize(rows.reshape(-1, rows.shape[2]))
    values = values.reshape(rows.shape)
    return values.transpose(1, 2).contiguous() if inputs_first else values, scales.reshape(rows.shape[:2])


def round_in_place(model: torch.nn.Module) -> None:
    """Round the weights of a model on the CPU as `Int8` does, for comparison: the layers stay what they are."""
    for name in sources(model):
        layer = model.get_submodule(name.removesuffix(".weight"))
        values, scale = quantize(layer.get_parameter("weight").data)
        layer.weight = torch.nn.Parameter(values * scale[:, None], requires_grad=False)  # an embedding keeps a tied one
    for name, inputs_first in expert_matrices(model).items():
        matrices = model.get_parameter(name)
        values, scale = quantize_experts(matrices.data, inputs_first)
        matrices.data = values * scale[:, None, :] if inputs_first else values * scale[:, :, None]


def _hold_int8(module: torch.nn.Module, name: str, inputs_first: bool, read_directly: bool) -> None:
    """Put int8 matrices and their scales in the place of a parameter; on the meta device.

    Args:
        module, name: the parameter's.
        inputs_first: whether each matrix is [inputs, outputs].
        read_directly: whether the module's own code reads the parameter: it gets the dequantised one.
    """
    matrix = module._parameters.pop(name)
    assert matrix is not None
    scale = torch.empty(matrix.shape[0], matrix.shape[2 if inputs_first else 1], dtype=torch.float32, device="meta")
    if read_directly:

        def dequantized(self: torch.nn.Module) -> torch.Tensor:
            if (held := self._buffers.get(name)) is None:
                raise AttributeError(name)  # while it is being registered
            scales: Any = self._buffers[name + SCALE]
            matrices: torch.Tensor = (held * scales[:, None, :]).to(matrix.dtype)
            return matrices

        own = type(module)
        module.__class__ = type(own.__name__, (own,), {name: property(dequantized)})
    module.register_buffer(name, torch.empty(matrix.shape, dtype=torch.int8, device="meta"))
    module.register_buffer(name + SCALE, scale)


def scale_of(weight: str) -> str:
    """The name of the scales of a linear layer's int8 weight, by that of the weight."""
    return f"{weight.removesuffix('.weight')}.scale"


def quantized(weight: jax.Array) -> tuple[jax.Array, jax.Array]:
    """As `quantize`, in a program: float32 [outputs, inputs] as int8, and float32 [outputs]."""
    scale = jnp.abs(weight).max(1) / 127
    scale = jnp.where(scale == 0, 1, scale)
    return jnp.round(weight / scale[:, None]).astype(jnp.int8), scale


def int8_dot(x: jax.Array, weight: jax.Array, scale: jax.Array) -> jax.Array:
    """x @ (weight * scale).T without float weights in memory.

    int8 is exact in bfloat16, so the scale is applied to the result. TPU and GPU convert inside the dot, a CPU where it
    reads the weights (linear.py); a CPU with an int8 matrix unit (AMX) uses it, in a fraction of the time. Several CPU
    devices simulate chips and use the same code as chips: a row that is split over devices would need a collective for
    its largest magnitude.

    Args:
        x: [..., inputs], float.
        weight: int8 [outputs, inputs].
        scale: float32 [outputs].

    Returns:
        [..., outputs], in the dtype of `x`.
    """
    on_cpu = int8_dot_on_cpu if jax.local_device_count() == 1 else _dot
    out: jax.Array = jax.lax.platform_dependent(x, weight, cpu=on_cpu, default=_dot)
    return (out * scale).astype(x.dtype)


def _dot(x: jax.Array, weight: jax.Array) -> jax.Array:
    rows = x.reshape(-1, x.shape[-1])
    return _of_rows(rows, weight).reshape(*x.shape[:-1], -1)


@lone_rows.padded
def _of_rows(rows: jax.Array, weight: jax.Array) -> jax.Array:
    return jnp.matmul(rows, weight.astype(rows.dtype).T, preferred_element_type=jnp.float32)
