"""Layers whose outputs are computed once.

The hidden states behind a transformer's layers are sums of all that the layers added. Adding is cheap, so XLA may do
the whole sum again where it is needed last, from the outputs of all layers, and has to keep those until then: twice
2 MB a layer for 256 tokens of Llama 3.1 8B. Behind a barrier it takes what a layer gave. Covers the layers that
transformers marks as such; what has none is left as it is.
"""

from collections.abc import Sequence
from typing import Any

import jax
import torch
from torchax import interop
from transformers.modeling_layers import GradientCheckpointingLayer

from hfjax_app.runtime.model_transform import Group, Transform


class LayerBarriers(Transform):
    """A barrier behind each layer; weights stay what they are."""

    def adapt(self, model: torch.nn.Module, groups: Sequence[Group] = ()) -> None:
        for module in model.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.register_forward_hook(_behind)


def _behind(_layer: torch.nn.Module, _inputs: tuple[Any, ...], output: Any) -> Any:
    """The layer's output: hidden states, or a tuple of them and more."""
    if isinstance(output, tuple):
        return (_barrier(output[0]), *output[1:])
    return _barrier(output)


def _barrier(hidden: torch.Tensor) -> torch.Tensor:
    behind: torch.Tensor = interop.call_jax(jax.lax.optimization_barrier, hidden)
    return behind
