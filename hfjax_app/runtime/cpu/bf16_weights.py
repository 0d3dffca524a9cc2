"""bfloat16 weights under float32 arithmetic, on a CPU: half the bytes to hold, and to read for each token.

Most checkpoints are in bfloat16, and a CPU computes in float32. Every number of the one is a number of the other, so
linear layers and embeddings keep what the files hold, and `linear.py` widens each number where it is read: the results
are float32's. Norms, biases, convolutions and experts that are one tensor are float32 all the way. Does not read
checkpoints: `safetensors_reader.py` does.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import torch
from torchax import interop

from hfjax_app.runtime.dtype_policy import Cast, kept_in_float32
from hfjax_app.runtime.model_transform import Group, LazyTensor, stored_weight


class Bf16Linear(torch.nn.Linear):
    """A linear layer whose weights may be bfloat16, to inputs in float32."""

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]  # torch declares an attribute; its code only reads it
        """[outputs, inputs] in float32, for code that reads it or its dtype; computed only where values are used."""
        return stored_weight(self).to(torch.float32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, stored_weight(self), self.bias)


class Bf16Embedding(torch.nn.Embedding):
    """An embedding whose weights may be bfloat16, to outputs in float32."""

    weight = Bf16Linear.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = interop.call_jax(_looked_up, ids, stored_weight(self))
        return rows


def _looked_up(ids: jax.Array, weight: jax.Array) -> jax.Array:
    """float32 [..., width] of ids [...].

    Of bfloat16, rows of bits are looked up, because XLA on CPU would widen the whole array first; and the barrier
    keeps it from making an array of bits ahead of a loop.
    """
    if weight.dtype != jnp.bfloat16:
        return weight[ids]
    ids, weight = jax.lax.optimization_barrier((ids, weight))
    bits = jax.lax.bitcast_convert_type(weight, jnp.uint16)[ids]
    return jax.lax.bitcast_convert_type(bits, jnp.bfloat16).astype(jnp.float32)


def may_stay_bfloat16(model: torch.nn.Module) -> set[str]:
    """The parameters that may: weights of linear layers and embeddings, and nothing else's.

    An embedding may be of an architecture's own class; a linear layer must be plain, or its code might do anything.
    """
    exact = kept_in_float32(model, torch.bfloat16)
    others = {id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False) if name in exact}
    for module in model.modules():
        may_be = "weight" if _kind(module) is not None else None
        others |= {id(parameter) for name, parameter in module._parameters.items() if name != may_be}
    floats = ((name, parameter) for name, parameter in model.named_parameters() if parameter.is_floating_point())
    return {name for name, parameter in floats if id(parameter) not in others}


class Bf16Weights(Cast):
    """Casts to the model's dtypes, but for what is bfloat16 in the files and may stay so.

    Args:
        model: in float32.
    """

    def __init__(self, model: torch.nn.Module):
        super().__init__(model)
        self._may_stay = may_stay_bfloat16(model)

    def adapt(self, model: torch.nn.Module, groups: Sequence[Group] = ()) -> None:
        """Let weights be float32 or, where they may, bfloat16."""
        names = may_stay_bfloat16(model)
        chosen = {id(parameter) for name, parameter in model.named_parameters() if name in names}
        for module in model.modules():
            if (kind := _kind(module)) is not None and id(module.weight) in chosen:
                own = type(module)
                # Behind the architecture's own class, which looks rows up by its parent's forward
                module.__class__ = kind if own in kind.__bases__ else type(own.__name__, (own, kind), {})

    def store(self, name: str, tensor: LazyTensor) -> Mapping[str, LazyTensor]:
        """The tensor as it is, or cast."""
        if name in self._may_stay and tensor.dtype == torch.bfloat16:
            return {name: tensor}
        return super().store(name, tensor)


def _kind(module: torch.nn.Module) -> type[torch.nn.Module] | None:
    """The class that takes a module's place."""
    if type(module) is torch.nn.Linear:
        return Bf16Linear
    return Bf16Embedding if isinstance(module, torch.nn.Embedding) else None
