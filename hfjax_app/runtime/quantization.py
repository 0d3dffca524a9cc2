"""int8 weights for linear layers: a quarter of float32's bytes to read for each token, half of bfloat16's.

One scale per output channel, the largest magnitude of its row over 127, so that nothing is clipped. Embeddings, norms,
biases and everything that is no plain linear layer keep their dtype. An output layer tied to the embedding is a linear
layer too: it gets int8 weights of its own beside the embedding, of which a step then reads a row a token and not the
whole, usually the largest weight of all. Activations are not quantised. Does not read checkpoints: `weights.py` does,
and quantises each tensor as it comes.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torchax import interop

from hfjax_app.runtime.module import Weights

# Of a weight on its way through int8, as float32: few enough to stay in a CPU's cache, enough rows for a fast dot.
_BLOCK_BYTES = 4 << 20
_SMALL_BLOCK_BYTES = 256 << 10  # measured: blocks of 0.5 to 8 MiB take a third longer
_ONE_BY_ONE, _FEW_ROWS = 4, 16


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


def sources(model: torch.nn.Module) -> dict[str, str]:
    """The int8 weights of a model, those of its linear layers: each one's name and the parameter that it rounds.

    The two differ where several modules share a parameter, which has the name of the first of them. It stays beside
    the int8 weights where that first one is an embedding; a linear layer whose parameter an embedding takes later is
    left alone, because the name can't mean both.
    """
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    embedded = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    linears = {
        f"{name}.weight": id(module.weight) for name, module in model.named_modules() if type(module) is torch.nn.Linear
    }
    return {name: first[of] for name, of in linears.items() if of not in embedded or first[of] != name}


def is_quantized(weights: Weights) -> bool:
    return any(value.dtype == jnp.int8 for value in weights.values())


def adapt(model: torch.nn.Module) -> None:
    """Put an Int8Linear in the place of each linear layer of a model without weights."""
    for name in sources(model):
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
    CPU for one row of `x`, but for more it would write the converted weights to memory first. There, a block of the
    weight's rows at a time is read or converted.

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
    """[rows, inputs] by [outputs, inputs]; what is fastest depends on how many rows share one conversion.

    One row takes its weights in two blocks or more, a loop: outside of one, XLA fuses what makes the row into the
    product and computes it again for every output. That took four times as long.
    """
    if flat.shape[0] == 1:
        return _in_blocks(_dot, flat, weight, least=2)
    if flat.shape[0] <= _ONE_BY_ONE:
        return _in_blocks(_dots_one_by_one, flat, weight)
    if flat.shape[0] <= _FEW_ROWS:
        return _in_blocks(_dot_of_converted, flat, weight, bytes_=_SMALL_BLOCK_BYTES)
    return _in_blocks(_dot, flat, weight)


@_rows_together.def_vmap
def _rows_of_a_batch(batch: int, batched: list[bool], flat: jax.Array, weight: jax.Array) -> tuple[jax.Array, bool]:
    assert batched == [True, False], "weights are shared"
    return _rows_together(flat.reshape(-1, flat.shape[-1]), weight).reshape(batch, flat.shape[1], -1), True


def _dots_one_by_one(flat: jax.Array, weight: jax.Array) -> jax.Array:
    """Each row reads int8, which takes less time than to convert once for all of so few.

    The barrier makes the weights depend on the row, or XLA would convert them ahead of the loop.
    """
    return jax.lax.map(lambda row: _dot(*jax.lax.optimization_barrier((row[None], weight)))[0], flat)


def _dot_of_converted(flat: jax.Array, weight: jax.Array) -> jax.Array:
    """Converted once, and the left operand, which XLA's library reads in place (linear.py)."""
    rows, converted = jax.lax.optimization_barrier((flat.T, weight.astype(flat.dtype)))
    return jax.lax.optimization_barrier(jnp.matmul(converted, rows, preferred_element_type=jnp.float32)).T


def _in_blocks(
    dot: Callable[[jax.Array, jax.Array], jax.Array],
    flat: jax.Array,
    weight: jax.Array,
    *,
    least: int = 1,
    bytes_: int = _BLOCK_BYTES,
) -> jax.Array:
    """The product over blocks of the weight's rows, `least` of them or more."""
    rows, columns = weight.shape
    step = max(1, min(rows // least, bytes_ // (columns * flat.dtype.itemsize)))
    count = rows // step
    blocks = jax.lax.map(
        lambda block: dot(flat, jax.lax.dynamic_slice_in_dim(weight, block * step, step)), jnp.arange(count)
    )
    out = jnp.moveaxis(blocks, 0, 1).reshape(flat.shape[0], count * step)
    if count * step < rows:
        out = jnp.concatenate([out, dot(flat, weight[count * step :])], axis=1)
    return out
