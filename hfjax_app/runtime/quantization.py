"""int8 weights for linear layers: a quarter of float32's bytes to read for each token, half of bfloat16's.

One scale per output channel, the largest magnitude of its row over 127, so that nothing is clipped. Embeddings (and an
output layer tied to one), norms, biases and everything that is no plain linear layer keep their dtype. Activations are
not quantised. Does not read checkpoints: `weights.py` does, and quantises each tensor as it comes.
"""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torchax import interop

from hfjax_app.runtime.module import Weights

# Of a weight on its way through int8: few enough bytes to stay in a CPU's cache, enough rows for a fast dot.
_BLOCK_BYTES = 4 << 20
_FEW_ROWS = 8


class Int8Linear(torch.nn.Module):
    """A linear layer whose weights are int8 [outputs, inputs] with a float32 scale [outputs]; on the meta device."""

    def __init__(self, linear: torch.nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.register_buffer("weight", torch.empty(linear.weight.shape, dtype=torch.int8, device="meta"))
        self.register_buffer("scale", torch.empty(linear.out_features, dtype=torch.float32, device="meta"))
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = interop.call_jax(int8_dot, x, self.weight, self.scale)
        return out if self.bias is None else out + self.bias


def names(model: torch.nn.Module) -> frozenset[str]:
    """The weights of a model that are quantised: of its linear layers, unless an embedding has the same weights."""
    embedded = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    return frozenset(
        f"{name}.weight"
        for name, module in model.named_modules()
        if type(module) is torch.nn.Linear and id(module.weight) not in embedded
    )


def is_quantized(weights: Weights) -> bool:
    return any(value.dtype == jnp.int8 for value in weights.values())


def adapt(model: torch.nn.Module) -> None:
    """Put an Int8Linear in the place of each linear layer of a model without weights, where `names` says so."""
    for name in names(model):
        path, _, leaf = name.removesuffix(".weight").rpartition(".")
        parent = model.get_submodule(path)
        setattr(parent, leaf, Int8Linear(getattr(parent, leaf)))


def scale_name(weight_name: str) -> str:
    return weight_name.removesuffix("weight") + "scale"


def quantize(weight: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """A weight [outputs, inputs] as int8, and its scales, float32 [outputs], such that weight ~ int8 * scale[:, None].

    A row of zeros has the scale 1. Works in blocks of rows: there is never a float32 copy of the whole.
    """
    rows, columns = weight.shape
    quantized, scales = np.empty((rows, columns), np.int8), np.empty(rows, np.float32)
    step = max(1, _BLOCK_BYTES // (4 * columns))
    for start in range(0, rows, step):
        block = weight[start : start + step].to(torch.float32)
        scale = block.abs().amax(1) / 127
        scale[scale == 0] = 1
        quantized[start : start + step] = (block / scale[:, None]).round_().to(torch.int8).numpy()
        scales[start : start + step] = scale.numpy()
    return quantized, scales


def int8_dot(x: jax.Array, weight: jax.Array, scale: jax.Array) -> jax.Array:
    """x @ (weight * scale).T without the float weights ever being in memory.

    int8 is exact in bfloat16, so the scale is applied to the result. TPU and GPU convert inside the dot; so does XLA on
    CPU for one row of `x`, but for more it would write the converted weights to memory first. There, a block of rows at
    a time is converted.

    Args:
        x: [..., inputs], float.
        weight: int8 [outputs, inputs].
        scale: float32 [outputs].

    Returns:
        [..., outputs], in the dtype of `x`.
    """
    out = jax.lax.platform_dependent(x, weight, cpu=_dot_on_cpu, default=_dot)
    return (out * scale).astype(x.dtype)


def _dot(x: jax.Array, weight: jax.Array) -> jax.Array:
    return jnp.matmul(x, weight.astype(x.dtype).T, preferred_element_type=jnp.float32)


def _dot_on_cpu(x: jax.Array, weight: jax.Array) -> jax.Array:
    flat = x.reshape(-1, x.shape[-1])
    return _rows_together(flat, weight).reshape(*x.shape[:-1], weight.shape[0])


@jax.custom_batching.custom_vmap
def _rows_together(flat: jax.Array, weight: jax.Array) -> jax.Array:
    """Few rows one by one: each reads int8, which takes less time than to convert once for all of them.

    The barrier makes the weights depend on the row, or XLA would convert them ahead of the loop. One row by itself
    takes its weights in two blocks, a loop too: outside of one, XLA fuses what makes the row into the product and
    computes it again for every output. That took four times as long.
    """
    if flat.shape[0] == 1:
        return _dot_in_blocks(flat, weight, least=2)
    if flat.shape[0] <= _FEW_ROWS:
        return jax.lax.map(lambda row: _one_row(*jax.lax.optimization_barrier((row, weight))), flat)
    return _dot_in_blocks(flat, weight)


def _one_row(row: jax.Array, weight: jax.Array) -> jax.Array:
    return _dot_in_blocks(row[None], weight)[0]


@_rows_together.def_vmap
def _rows_of_a_batch(batch: int, batched: list[bool], flat: jax.Array, weight: jax.Array) -> tuple[jax.Array, bool]:
    assert batched == [True, False], "weights are shared"
    return _rows_together(flat.reshape(-1, flat.shape[-1]), weight).reshape(batch, flat.shape[1], -1), True


def _dot_in_blocks(flat: jax.Array, weight: jax.Array, least: int = 1) -> jax.Array:
    """The product over blocks of the weight's rows, `least` of them or more."""
    rows, columns = weight.shape
    step = max(1, min(rows // least, _BLOCK_BYTES // (columns * flat.dtype.itemsize)))
    count = rows // step
    blocks = jax.lax.map(
        lambda block: _dot(flat, jax.lax.dynamic_slice_in_dim(weight, block * step, step)), jnp.arange(count)
    )
    out = jnp.moveaxis(blocks, 0, 1).reshape(flat.shape[0], count * step)
    if count * step < rows:
        out = jnp.concatenate([out, _dot(flat, weight[count * step :])], axis=1)
    return out
