"""bfloat16 weights with float32 arithmetic, on a CPU: half the bytes in memory, and to read for each token.

Most checkpoints are in bfloat16, and a CPU computes in float32. Every bfloat16 number is a float32 number, so linear
layers and embeddings keep the numbers of the files, and `linear.py` converts each number where it is read: the results
are those of float32. Norms, biases, convolutions and experts in a single tensor are float32. Does not read checkpoints:
`safetensors_reader.py` does.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import torch
from torchax import interop

from hfjax_app.runtime.dtype_policy import Cast, kept_in_float32
from hfjax_app.runtime.model_transform import Group, LazyTensor, stored_weight


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
