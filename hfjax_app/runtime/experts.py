"""Mixtures of experts: each device computes the experts that it holds, for all tokens, and the results are added up.

transformers computes experts by a function that is chosen by name (`ExpertsInterface`); `_forward` is ours. Rows are
sorted by expert and multiplied with `jax.lax.ragged_dot`, which a TPU computes by a kernel of its own that reads int8
matrices as they are. XLA's partitioner does not know that kernel: left to it, each device would gather all experts.
Experts outside that interface (Llama 4) are a batched product, which the partitioner splits.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import torch
import torchax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec
from torchax import interop
from transformers import PreTrainedModel

from hfjax_app.runtime.mesh import AXIS
from hfjax_app.runtime.model_transform import Group, LazyTensor, Transform
from hfjax_app.runtime.seams.transformers import gate_of, holds_experts, register_experts

NAME = "hfjax"  # of `_forward`, for transformers
SCALE = "_scale"  # behind the name of an int8 matrix: its scales, float32 [experts, outputs]
_BIAS = "_bias"  # transformers' name for biases [experts, outputs]

Parameters = Mapping[str, jax.Array]


def experts_of(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The modules that hold experts and are computed by a chosen function, by name."""
    found = {name: module for name, module in model.named_modules() if holds_experts(module)}
    return {name: module for name, module in found.items() if not module.has_post_expert_norm}


def matrices_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The experts' matrices [experts, ...] of a module, by name."""
    held = {**module._parameters, **module._buffers}
    return {name: tensor for name, tensor in held.items() if tensor is not None and tensor.ndim == 3}


class Experts(Transform):
    """Computes experts by `_forward`.

    Args:
        model: before any transform.
        mesh: the devices, which hold whole experts where they divide them evenly; None: the default device.
        inputs_first: whether matrices are held as [experts, inputs, outputs], as a TPU's kernel takes them: others
            would be transposed in each step.
    """

    def __init__(self, model: torch.nn.Module, mesh: Mesh | AbstractMesh | None, *, inputs_first: bool):
        self._mesh = None if mesh is None or mesh.size == 1 else mesh
        self._inputs_first = inputs_first
        self._turned = {
            f"{name}.{matrix}"
            for name, module in experts_of(model).items()
            if self._turns(module)
            for matrix in matrices_of(module)
        }

    def _splits(self, module: torch.nn.Module) -> bool:
        """Whether each device holds whole experts."""
        return self._mesh is not None and all(m.shape[0] % self._mesh.size == 0 for m in matrices_of(module).values())

    def _turns(self, module: torch.nn.Module) -> bool:
        # The partitioner splits other matrices along their outputs and inputs, see `TensorParallel`.
        whole = self._mesh is None or self._splits(module)
        return self._inputs_first and whole and not module.is_transposed

    def adapt(self, model: torch.nn.Module, groups: Sequence[Group] = ()) -> None:
        """Choose `_forward`, and change the shapes of matrices that are turned."""
        cast(PreTrainedModel, model).set_experts_implementation(NAME)
        for module in experts_of(model).values():
            module.mesh = self._mesh if self._splits(module) else None  # type: ignore[assignment]
            if not self._turns(module):
                continue
            for name, matrix in matrices_of(module).items():
                turned = matrix.transpose(1, 2).contiguous()
                held = module._parameters if name in module._parameters else module._buffers
                held[name] = torch.nn.Parameter(turned) if held is module._parameters else turned  # type: ignore[assignment]
            module.is_transposed = True  # type: ignore[assignment]

    def store(self, name: str, tensor: LazyTensor) -> Mapping[str, LazyTensor]:
        """The matrix, turned, or another tensor as it is."""
        return {name: LazyTensor.of(tensor[:].transpose(1, 2).contiguous()) if name in self._turned else tensor}


def _forward(
    module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """The signature that ExpertsInterface requires.

    Args:
        hidden_states: [tokens, width].
        top_k_index, top_k_weights: [tokens, experts of a token].

    Returns:
        [tokens, width].
    """
    mixture = _Mixture(
        first="gate_up_proj" if module.has_gate else "up_proj",
        activation=gate_of(module) if module.has_gate else module.act_fn,
        inputs_first=module.is_transposed,
        mesh=getattr(module, "mesh", None),
    )
    names = [name for name, held in (*module._parameters.items(), *module._buffers.items()) if held is not None]
    parameters = {name: getattr(module, name) for name in names}
    out: torch.Tensor = interop.call_jax(mixture.of_any, parameters, hidden_states, top_k_index, top_k_weights)
    return out


register_experts(NAME, _forward)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Mixture:
    """A module's experts as a function of arrays.

    Args:
        first: the name of the first matrix; the second one is "down_proj".
        activation: torch code between both.
        inputs_first: whether a matrix is [inputs, outputs].
        mesh: the devices that hold whole experts each; None: one device, or what the partitioner makes of it.
    """

    first: str
    activation: Callable[[torch.Tensor], torch.Tensor]
    inputs_first: bool
    mesh: Mesh | AbstractMesh | None

    def of_any(self, *arguments: Any) -> jax.Array:
        """`of_tokens`, also under vmap: the tokens of several sequences are tokens, and share their experts."""
        function = jax.custom_batching.custom_vmap(self.of_tokens)

        @function.def_vmap
        def of_batch(size: int, batched: Any, parameters: Parameters, *tokens: jax.Array) -> tuple[jax.Array, bool]:
            assert not any(jax.tree.leaves(batched[0])), "experts are shared"
            whole = [
                array if is_batched else jnp.broadcast_to(array, (size, *array.shape))
                for array, is_batched in zip(tokens, batched[1:], strict=True)
            ]
            out = self.of_any(parameters, *(array.reshape(-1, array.shape[-1]) for array in whole))
            return out.reshape(size, -1, out.shape[-1]), True

        out: jax.Array = function(*arguments)
        return out

    def of_tokens(self, parameters: Parameters, hidden: jax.Array, index: jax.Array, weights: jax.Array) -> jax.Array:
        """[tokens, width], in the dtype of `hidden`; arguments as for `_forward`."""
        if self.mesh is None:
            return self._of_held(parameters, hidden, index, weights, 0).astype(hidden.dtype)

        def on_each(parameters: Parameters, hidden: jax.Array, index: jax.Array, weights: jax.Array) -> jax.Array:
            first = jax.lax.axis_index(AXIS) * parameters["down_proj"].shape[0]
            part: jax.Array = jax.lax.psum(self._of_held(parameters, hidden, index, weights, first), AXIS)
            return part

        whole, split = PartitionSpec(), PartitionSpec(AXIS)
        shared = jax.shard_map(on_each, mesh=self.mesh, in_specs=(split, whole, whole, whole), out_specs=whole)
        out: jax.Array = shared(parameters, hidden, index, weights)
        return out.astype(hidden.dtype)

    def _of_held(
        self, parameters: Parameters, hidden: jax.Array, index: jax.Array, weights: jax.Array, first: int | jax.Array
    ) -> jax.Array:
        """The sum over a token's experts that are held here, float32 [tokens, width].

        Args:
            parameters: of the experts `first`, `first` + 1, ...
            hidden, index, weights: as for `_forward`.
        """
        held = parameters["down_proj"].shape[0]
        chosen = index.reshape(-1) - first
        chosen = jnp.where((chosen >= 0) & (chosen < held), chosen, held)  # the others come last
        order = jnp.argsort(chosen, stable=True)
        expert = chosen[order]
        sizes = jnp.sum(expert[:, None] == jnp.arange(held), axis=0, dtype=jnp.int32)
        rows = hidden[order // index.shape[1]]
        rows = self._product(parameters, self.first, rows, sizes, expert)
        with torchax.default_env():
            rows = interop.jax_view(self.activation(interop.torch_view(rows.astype(hidden.dtype))))
        rows = self._product(parameters, "down_proj", rows, sizes, expert)
        rows = rows * weights.reshape(-1)[order][:, None]
        return rows[jnp.argsort(order)].reshape(*index.shape, -1).sum(axis=1)

    def _product(
        self, parameters: Parameters, name: str, rows: jax.Array, sizes: jax.Array, expert: jax.Array
    ) -> jax.Array:
        """Each row times its expert's matrix, float32 [rows, outputs]; zeros for experts that are not held.

        Args:
            rows: [rows, inputs], sorted by expert.
            sizes: int32 [held], rows of each expert.
            expert: int32 [rows], in order; those that are not held are larger.
        """
        matrices = parameters[name] if self.inputs_first else parameters[name].swapaxes(1, 2)
        out = jax.lax.platform_dependent(rows, matrices, sizes, cpu=_converted_dot, default=_dot)
        own = jnp.minimum(expert, sizes.shape[0] - 1)
        if (scale := parameters.get(name + SCALE)) is not None:
            out = out * scale[own]
        if (bias := parameters.get(name + _BIAS)) is not None:
            out = out + bias[own]
        return jnp.where((expert < sizes.shape[0])[:, None], out, 0)  # the kernel writes nothing there


def _dot(rows: jax.Array, matrices: jax.Array, sizes: jax.Array) -> jax.Array:
    return jax.lax.ragged_dot(rows, matrices, sizes, preferred_element_type=jnp.float32)


def _converted_dot(rows: jax.Array, matrices: jax.Array, sizes: jax.Array) -> jax.Array:
    return _dot(rows, matrices.astype(rows.dtype), sizes)


@contextmanager
def used(model: torch.nn.Module) -> Iterator[dict[str, int]]:
    """How many experts a token uses, by the name of the module that holds them, in a call of the model in the block.

    A module with a parameter of three axes whose call gets integers [tokens, experts of a token] holds experts. One
    that computes all of its experts for each token (Llama 4) gets none, and is left out.
    """
    found: dict[str, int] = {}

    def record(name: str, _module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor) and value.ndim == 2 and not value.is_floating_point():
                found[name] = value.shape[-1]

    hooks = [
        module.register_forward_pre_hook(partial(record, name), with_kwargs=True)
        for name, module in model.named_modules()
        if any(parameter.ndim == 3 for parameter in module._parameters.values() if parameter is not None)
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
