"""A torch module as a weights pytree and a pure JAX function, through torchax; the module's code runs unmodified.

`programs.py` compiles the function that this module makes.
"""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import torch
import torchax
from torchax import interop

from hfjax_app.runtime import operators
from hfjax_app.runtime.seams.torchax import array_of, torch_dtype
from hfjax_app.runtime.seams.transformers import order_sets

Weights = dict[str, jax.Array]
Shapes = dict[str, jax.ShapeDtypeStruct]  # of weights that are not loaded: enough to compile


class _Call(torch.nn.Module):
    """`function(module, *args)` as a forward, so that torch.func.functional_call replaces the weights during it."""

    def __init__(self, module: torch.nn.Module, function: Callable[..., Any]):
        super().__init__()
        self.module = module
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(self.module, *args)


def weights_of(module: torch.nn.Module, dtype: Any = None) -> Weights:
    """The module's parameters and buffers as JAX arrays on the default device, by their torch names.

    Tied parameters are listed once (`named_parameters` skips repeats, and functional_call ties them again). Buffers are
    listed too, also those outside the state dict, such as rotary frequencies: a tensor that is missing here would
    become a constant of the program. On a CPU an array may share its memory with the torch tensor: do not write to the
    module afterwards.

    Args:
        module: any torch module with its weights on the CPU.
        dtype: where given, floating-point parameters (not buffers) are cast to it.
    """
    named: dict[str, torch.Tensor] = dict(module.named_parameters())
    if dtype is not None:
        wanted = torch_dtype(dtype)
        named = {name: p.to(wanted) if p.is_floating_point() else p for name, p in named.items()}
    named |= dict(module.named_buffers())
    return {name: jax.device_put(array_of(tensor.detach())) for name, tensor in named.items()}


def pure_function(
    module: torch.nn.Module, function: Callable[..., Any] = lambda module, *args: module(*args)
) -> Callable[..., Any]:
    """A pure JAX function `f(weights, *args)` that runs `function(module, *args)` with those weights.

    Args:
        module: the torch module; set to evaluation mode, otherwise unchanged.
        function: torch code over the module; it gets torch views of `args` and returns a pytree of tensors (a tuple,
            list or dict; not a ModelOutput). Use it for methods other than forward, such as a VAE's decode.

    Returns:
        A function of JAX arrays (pytrees allowed) that can be traced by jit, vmap and grad. Weights in the host's
        memory are copied to the device where they are used.
    """
    call, environment = _Call(module.eval(), function), torchax.default_env()
    operators.install(environment)
    order_sets(*map(type, module.modules()))

    def jax_function(weights: Weights, *args: Any) -> Any:
        with jax.ensure_compile_time_eval():
            _ = environment.param  # a thread's own random key: of its first trace, it would outlive that
        named = {f"module.{name}": _on_device(value) for name, value in weights.items()}
        with environment, torch.no_grad(), warnings.catch_warnings():
            # torch code asks for int64; jax, without x64, uses int32 and warns at every trace
            warnings.filterwarnings("ignore", "Explicitly requested dtype")
            named, args = interop.torch_view((named, args))
            return interop.jax_view(torch.func.functional_call(call, named, args))

    return jax_function


def _on_device(weight: jax.Array) -> jax.Array:
    is_there = jax.typeof(weight).memory_space != jax.memory.Space.Host
    return weight if is_there else jax.device_put(weight, jax.memory.Space.Device)


def run_in_torch(
    module: torch.nn.Module, weights: Weights, function: Callable[..., torch.Tensor], *args: torch.Tensor
) -> torch.Tensor:
    """`function(module, *args)` in torch on the CPU with these weights, which share the arrays' memory there.

    Args:
        module: set to evaluation mode, otherwise unchanged; its own weights are not used.
        weights: of `weights_of`; elsewhere than on a CPU each is copied to the host.
        function: torch code over the module.
    """
    dtypes = {name: tensor.dtype for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    host = jax.devices("cpu")[0]
    tensors = {name: torch.from_dlpack(jax.device_put(array, host)) for name, array in weights.items()}
    # jax has no int64: torch's indices do
    named = {f"module.{name}": t if t.is_floating_point() else t.to(dtypes[name]) for name, t in tensors.items()}
    with torch.no_grad():
        result: torch.Tensor = torch.func.functional_call(_Call(module.eval(), function), named, args)
    return result
