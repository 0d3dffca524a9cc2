"""How a CPU holds weights: bfloat16 with float32 arithmetic, kernels in XLA's order, layers of one input as one.

Most checkpoints are in bfloat16, and a CPU computes in float32. Every bfloat16 number is a float32 number, so linear
layers and embeddings keep the numbers of the files, and `linear.py` converts each number where it is read: half the
bytes, and the results are those of float32. Norms, biases, convolutions and experts in a single tensor are float32.
"""

from collections.abc import Mapping, Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torchax import interop

from hfjax_app.runtime.dtype_policy import Cast, kept_in_float32
from hfjax_app.runtime.model_transform import Group, LazyTensor, Transform, stored_weight


class Bf16Linear(torch.nn.Linear):
    """A linear layer whose weights may be bfloat16, for inputs in float32."""

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]  # torch declares an attribute; its code only reads it
        """[outputs, inputs] in float32, for code that reads it or its dtype; computed only where values are used."""
        return stored_weight(self).to(torch.float32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, stored_weight(self), self.bias)


class Bf16Embedding(torch.nn.Embedding):
    """An embedding whose weights may be bfloat16, with outputs in float32."""

    weight = Bf16Linear.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = interop.call_jax(_looked_up, ids, stored_weight(self))
        return rows


def _looked_up(ids: jax.Array, weight: jax.Array) -> jax.Array:
    """float32 [..., width] of ids [...].

    A bfloat16 lookup reads rows as bits, because XLA on a CPU would convert the whole array first. The barrier keeps
    XLA from making the array of bits before a loop.
    """
    if weight.dtype != jnp.bfloat16:
        return weight[ids]
    ids, weight = jax.lax.optimization_barrier((ids, weight))
    bits = jax.lax.bitcast_convert_type(weight, jnp.uint16)[ids]
    return jax.lax.bitcast_convert_type(bits, jnp.bfloat16).astype(jnp.float32)


def may_stay_bfloat16(model: torch.nn.Module) -> set[str]:
    """The parameters that may stay bfloat16: weights of linear layers and embeddings that no other module uses.

    An embedding may be of an architecture's own class; a linear layer must be plain, because other code is unknown.
    """
    exact = kept_in_float32(model, torch.bfloat16)
    others = {id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False) if name in exact}
    for module in model.modules():
        may_be = "weight" if _kind(module) is not None else None
        others |= {id(parameter) for name, parameter in module._parameters.items() if name != may_be}
    floats = ((name, parameter) for name, parameter in model.named_parameters() if parameter.is_floating_point())
    return {name for name, parameter in floats if id(parameter) not in others}


class Bf16Weights(Cast):
    """Casts to the model's dtypes, except weights that are bfloat16 in the files and may stay so.

    Args:
        model: in float32.
    """

    def __init__(self, model: torch.nn.Module):
        super().__init__(model)
        self._may_stay = may_stay_bfloat16(model)

    def adapt(self, model: torch.nn.Module, groups: Sequence[Group] = ()) -> None:
        """Change the classes of layers whose weights may be bfloat16."""
        names = may_stay_bfloat16(model)
        chosen = {id(parameter) for name, parameter in model.named_parameters() if name in names}
        for module in model.modules():
            if (kind := _kind(module)) is not None and id(module.weight) in chosen:
                own = type(module)
                # After the architecture's own class, which calls its parent's forward for the lookup
                module.__class__ = kind if own in kind.__bases__ else type(own.__name__, (own, kind), {})

    def store(self, name: str, tensor: LazyTensor) -> Mapping[str, LazyTensor]:
        """The tensor unchanged, or cast."""
        if name in self._may_stay and tensor.dtype == torch.bfloat16:
            return {name: tensor}
        return super().store(name, tensor)


def _kind(module: torch.nn.Module) -> type[torch.nn.Module] | None:
    """The class that replaces a module's class; None for other modules."""
    if type(module) is torch.nn.Linear:
        return Bf16Linear
    return Bf16Embedding if isinstance(module, torch.nn.Embedding) else None


_TO_HWIO = (2, 3, 1, 0)
_TO_OIHW = (3, 2, 0, 1)


class HwioConv2d(torch.nn.Conv2d):
    """A convolution whose kernel is [height, width, inputs, outputs]."""

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]  # torch declares an attribute; its code only reads it
        """The kernel in torch's order; free inside a program, because XLA's own transposition undoes it."""
        return stored_weight(self).permute(_TO_OIHW)


class ConvLayout(Transform):
    """Stores the kernels of a module's 2-D convolutions in HWIO order, XLA's on a CPU.

    torch's order is OIHW (outputs, inputs, height, width). XLA would transpose every kernel at every call: an eighth
    of the processor time of a small UNet's step. An accelerator's compiler chooses the layout of arguments itself.

    Args:
        module: before any transform.
    """

    def __init__(self, module: torch.nn.Module):
        layers = (name for name, part in module.named_modules() if isinstance(part, torch.nn.Conv2d))
        self._kernels = {f"{name}.weight" for name in layers}

    def adapt(self, model: torch.nn.Module, groups: Sequence[Group] = ()) -> None:
        """Make convolutions accept kernels in HWIO order."""
        for name in self._kernels:
            layer = model.get_submodule(name.removesuffix(".weight"))
            kernel = stored_weight(layer).detach().permute(_TO_HWIO)
            layer._parameters["weight"] = torch.nn.Parameter(kernel, requires_grad=False)
            own = type(layer)
            layer.__class__ = HwioConv2d if own is torch.nn.Conv2d else type(own.__name__, (HwioConv2d, own), {})

    def store(self, name: str, tensor: LazyTensor) -> Mapping[str, LazyTensor]:
        """A kernel [outputs, inputs, height, width] as [height, width, inputs, outputs]."""
        return {name: LazyTensor.of(tensor[:].permute(_TO_HWIO)) if name in self._kernels else tensor}


class LinearSlice(torch.nn.Module):
    """A linear layer whose outputs are a part of a larger layer's outputs.

    Args:
        weight: [all outputs, inputs], shared by all parts.
        start: the index of this layer's first output.
        linear: the original layer; its bias is kept.
    """

    def __init__(self, weight: torch.nn.Parameter, start: int, linear: torch.nn.Linear):
        super().__init__()
        self.in_features, self.out_features, self.start = linear.in_features, linear.out_features, start
        self.weight, self.bias = weight, linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.nn.functional.linear(x, self.weight).narrow(-1, self.start, self.out_features)
        return out if self.bias is None else out + self.bias


class FusedLinear(Transform):
    """Stores one weight for each group of layers that read the same input (QKV, gate and up), under the first's name.

    On a CPU each product has a fixed cost, and a large one reads its weights faster than several small ones. The layers
    share the weight as tied layers do, and XLA merges their equal products. Int8 weights gain nothing by it, and parts
    of weights that are split over devices would no longer be whole heads.

    Parts of an incomplete group are held in memory, so that two whole models never exist at the same time.
    """

    def __init__(self) -> None:
        self._group_of: dict[str, Group] = {}
        self._parts: dict[str, torch.Tensor] = {}

    def adapt(self, model: torch.nn.Module, groups: Sequence[Group] = ()) -> None:
        """Replace the layers of each group by parts of one layer."""
        self._group_of = {f"{name}.weight": names for names in groups for name in names}
        for names in groups:
            layers = [cast(torch.nn.Linear, model.get_submodule(name)) for name in names]
            starts = np.cumsum([0, *(layer.out_features for layer in layers)]).tolist()
            whole = torch.empty((starts[-1], layers[0].in_features), dtype=layers[0].weight.dtype, device="meta")
            weight = torch.nn.Parameter(whole, requires_grad=False)
            for name, layer, start in zip(names, layers, starts, strict=False):
                parent, _, leaf = name.rpartition(".")
                setattr(model.get_submodule(parent), leaf, LinearSlice(weight, start, layer))

    def store(self, name: str, tensor: LazyTensor) -> Mapping[str, LazyTensor]:
        """The fused weight, [all outputs, inputs], with the last part of a group; nothing with the parts before."""
        if name not in self._group_of:
            return {name: tensor}
        self._parts[name] = tensor[:]  # read now: its file may be closed before the last part is read
        names = [f"{layer}.weight" for layer in self._group_of[name]]
        if any(other not in self._parts for other in names):
            return {}
        return {names[0]: LazyTensor.of(torch.cat([self._parts.pop(other) for other in names]))}
