"""torchax lowerings that upstream lacks or gets wrong under our rules (float32 and int32 only, no warning, no loop).

Each is a plain JAX function with the signature of its aten operator.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torchax import interop
from torchax.ops import jaten, ops_registry  # noqa: F401  (importing jaten fills the registry)
from torchax.tensor import Environment, Tensor

from hfjax_app.runtime.cpu.linear import linear

_upstream_convolution: Callable[..., jax.Array] = ops_registry.all_aten_ops[torch.ops.aten.convolution].func
_MASKED = -1e30  # finite: a query that may look nowhere averages everything instead of becoming NaN
_MOST_SCORES = 1 << 20  # numbers that are still in a CPU's cache when the softmax comes back to them


def upsample_nearest2d(
    image: jax.Array,
    output_size: Sequence[int] | None,
    scales_h: float | Sequence[float] | None = None,
    scales_w: float | None = None,
) -> jax.Array:
    """Nearest-neighbour enlargement: output[y, x] = image[y * height // new height, x * width // new width], or with
    factors image[floor(y / factor), floor(x / factor)].

    Upstream decomposes it with int64 indices, which JAX cuts to int32 with a warning at every trace, and gathers; whole
    factors, the only ones in a diffusion model, are a broadcast.

    Args:
        image: [batch, channels, height, width].
        output_size: the new height and width, or None where `scales_h` has both factors (the `vec` overload).
        scales_h: the height's factor, or None.
        scales_w: the width's factor, or None.
    """
    batch, channels, height, width = image.shape
    factors = scales_h if isinstance(scales_h, Sequence) else (scales_h, scales_w)
    if output_size is None:
        assert isinstance(scales_h, Sequence)
        output_size = int(height * scales_h[0]), int(width * scales_h[1])
    new_height, new_width = (int(size) for size in output_size)
    if new_height % height == 0 and new_width % width == 0:
        tall, wide = new_height // height, new_width // width
        spread = jnp.broadcast_to(image[:, :, :, None, :, None], (batch, channels, height, tall, width, wide))
        return spread.reshape(batch, channels, new_height, new_width)
    rows = _nearest(new_height, height, factors[0])
    columns = _nearest(new_width, width, factors[1])
    return image[:, :, rows][:, :, :, columns]


def _nearest(new: int, old: int, factor: float | None) -> jax.Array:
    """Which of `old` places each of `new` ones shows."""
    if factor is None:
        return jnp.arange(new, dtype=jnp.int32) * old // new
    return jnp.minimum(jnp.floor(jnp.arange(new) * jnp.float32(1 / factor)).astype(jnp.int32), old - 1)


def convolution(
    image: jax.Array, weight: jax.Array, bias: jax.Array | None, stride: Sequence[int], *rest: Any
) -> jax.Array:
    """Upstream's, but that the groups of a transposed convolution, which it mixes up, are convolved one by one.

    Args:
        image: [batch, inputs, height, width], or what else torch convolves.
        weight: [outputs, inputs, height, width].
        bias: [outputs] or None.
        stride: of each axis.
        rest: padding, dilation, transposed, output padding, groups.
    """
    *others, transposed, more, groups = rest
    if not transposed or groups == 1:
        return _upstream_convolution(image, weight, bias, stride, *rest)
    parts = zip(jnp.split(image, groups, axis=1), jnp.split(weight, groups), strict=True)
    alone = [_upstream_convolution(*part, None, stride, *others, transposed, more, 1) for part in parts]
    out = jnp.concatenate(alone, axis=1)
    return out if bias is None else out + bias.reshape(-1, *[1] * (out.ndim - 2))


def gelu(x: jax.Array, *, approximate: str = "none") -> jax.Array:
    """x times the normal distribution's share below x, or with approximate="tanh" its approximation.

    Upstream takes erfc, which is exact where the result is all but zero: two polynomials, an exponential and a division
    for every number, on CPU a twentieth to a fifth of a small encoder's time. torch takes erf too, and like torch this
    computes in float32 what comes in half precision.

    Args:
        x: any shape.
        approximate: "none" or "tanh".
    """
    if approximate == "tanh":
        return jax.nn.gelu(x, approximate=True)
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return (0.5 * wide * (1 + jax.lax.erf(wide * math.sqrt(0.5)))).astype(x.dtype)


def group_norm(
    image: jax.Array,
    weight: jax.Array | None,
    bias: jax.Array | None,
    batch: int,
    channels: int,
    pixels: int,
    groups: int,
    eps: float = 1e-5,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Each group of channels less its mean, by its standard deviation, in float32 like torch's.

    Upstream rounds the mean to the dtype of the image before it is taken off, and maps over a single element. Channels
    come last in between, as in the convolutions of XLA on CPU: an autoencoder takes half as long as with torch's order.

    Args:
        image: [batch, channels, ...], `pixels` numbers for each channel.
        weight, bias: [channels].

    Returns:
        The result in the shape and dtype of `image`, and float32 [batch, groups]: means and inverse deviations.
    """
    wide = jnp.moveaxis(image, 1, -1).astype(jnp.promote_types(image.dtype, jnp.float32))
    wide = wide.reshape(batch, pixels, channels)

    def of_groups(numbers: jax.Array) -> jax.Array:
        return numbers.mean(1).reshape(batch, groups, -1).mean(-1)

    def of_channels(numbers: jax.Array) -> jax.Array:
        return jnp.repeat(numbers, channels // groups, axis=1)[:, None]

    mean = of_groups(wide)
    centred = wide - of_channels(mean)
    inverse = jax.lax.rsqrt(of_groups(jnp.square(centred)) + eps)
    out = centred * of_channels(inverse)
    out = out if weight is None else out * weight
    out = out if bias is None else out + bias
    out = jnp.moveaxis(out.reshape(batch, *image.shape[2:], channels), -1, 1)
    return out.astype(image.dtype), mean, inverse


def layer_norm(
    x: jax.Array,
    shape: Sequence[int],
    weight: jax.Array | None = None,
    bias: jax.Array | None = None,
    eps: float = 1e-5,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The last axes less their mean, by their standard deviation, in float32 like torch's; upstream rounds in between.

    Args:
        x: [..., *shape].
        shape: of what is taken together.
        weight, bias: of this shape.

    Returns:
        The result in the shape and dtype of `x`, and float32 [..., 1, ...]: means and inverse deviations.
    """
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean = wide.mean(axes, keepdims=True)
    inverse = jax.lax.rsqrt(jnp.square(wide - mean).mean(axes, keepdims=True) + eps)
    out = (wide - mean) * inverse
    out = out if weight is None else out * weight
    out = out if bias is None else out + bias
    return out.astype(x.dtype), mean, inverse


def scaled_dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    attn_mask: jax.Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> jax.Array:
    """Attention that divides by the sum of the exponentials after the product with the values.

    There the array is as wide as a head, and not as all keys; the softmax is float32. Upstream scales, adds a mask of
    zeros and divides over all pairs of query and key, which XLA on CPU does one after the other: a UNet takes a quarter
    less time this way. On CPU many scores are made head by head, which halves the attention of 1,024 pixels.

    Args:
        query: [..., queries, head_dim].
        key: [..., keys, head_dim].
        value: [..., keys, value_dim].
        attn_mask: bool, True where a query may look, or added to the scores; broadcastable to [..., queries, keys].
        dropout_p: 0: nothing is trained here.
        is_causal: a query may look at the keys up to its own place.
        scale: of the scores; None: head_dim ** -0.5.
        enable_gqa: each head of the keys serves several heads of the queries.

    Returns:
        [..., queries, value_dim], in the dtype of `query`.
    """
    assert dropout_p == 0
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = jnp.repeat(key, groups, axis=-3), jnp.repeat(value, groups, axis=-3)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if is_causal:
        attn_mask = jnp.tri(query.shape[-2], key.shape[-2], dtype=bool)
    together = functools.partial(_attention, mask=attn_mask, scale=scale)
    shared = not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]  # keys, by several heads or images
    if shared or attn_mask is not None or math.prod(query.shape[:-1]) * key.shape[-2] <= _MOST_SCORES:
        return together(query, key, value)
    one_by_one = functools.partial(_each_head, together)
    out: jax.Array = jax.lax.platform_dependent(query, key, value, cpu=one_by_one, default=together)
    return out


def _each_head(attention: Callable[..., jax.Array], query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """One head's scores after the other's, each in the place of the last: all of them would not fit a cache."""
    heads = jax.tree.map(lambda array: array.reshape(-1, *array.shape[-2:]), (query, key, value))
    # unrolled, because between two iterations a CPU's other cores have nothing to do
    _, out = jax.lax.scan(lambda _, head: (None, attention(*head)), None, heads, unroll=4)
    return out.reshape(*query.shape[:-1], -1)


def _attention(
    query: jax.Array, key: jax.Array, value: jax.Array, *, mask: jax.Array | None, scale: float
) -> jax.Array:
    wide = jnp.promote_types(query.dtype, jnp.float32)
    scores = jnp.einsum("...qd,...kd->...qk", query * scale, key, preferred_element_type=wide)
    if mask is not None:
        scores = jnp.where(mask, scores, _MASKED) if mask.dtype == bool else jnp.maximum(scores + mask, _MASKED)
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
    out = jnp.einsum("...qk,...kd->...qd", weights.astype(value.dtype), value, preferred_element_type=wide)
    return (out / weights.sum(-1, keepdims=True)).astype(query.dtype)


def grouped_mm(
    rows: jax.Array,
    matrices: jax.Array,
    offsets: jax.Array,
    bias: jax.Array | None = None,
    out_dtype: torch.dtype | None = None,
) -> jax.Array:
    """Each group of rows times its own matrix: a mixture of experts, its tokens sorted by expert.

    Args:
        rows: [tokens, in].
        matrices: [groups, in, out].
        offsets: int32 [groups], where each group of rows ends.
        bias, out_dtype: never given; the operator has them.

    Returns:
        [tokens, out], in the dtype of `rows`.
    """
    assert bias is None
    assert out_dtype is None
    product: jax.Array = _ragged_dot(rows, matrices, jnp.diff(offsets, prepend=0).astype(jnp.int32))
    return product.astype(rows.dtype)


@jax.custom_batching.custom_vmap
def _ragged_dot(rows: jax.Array, matrices: jax.Array, sizes: jax.Array) -> jax.Array:
    return jax.lax.ragged_dot(rows, matrices, sizes, preferred_element_type=jnp.float32)


@_ragged_dot.def_vmap
def _ragged_dot_of_batch(
    batch: int, batched: list[bool], rows: jax.Array, matrices: jax.Array, sizes: jax.Array
) -> tuple[jax.Array, bool]:
    """Several sequences at once are one product again, sorted by group: each matrix is read once for all of them."""
    assert batched == [True, False, True], "experts are shared"
    count = rows.shape[1]
    ends = jnp.cumsum(sizes, axis=1)
    group = jnp.sum(jnp.arange(count)[None, :, None] >= ends[:, None, :], axis=-1).reshape(-1)
    order = jnp.argsort(group, stable=True)
    sizes = jnp.sum(sizes, axis=0)
    product = _ragged_dot(rows.reshape(batch * count, -1)[order], matrices, sizes)
    return jnp.zeros_like(product).at[order].set(product).reshape(batch, count, -1), True


def type_as(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """x in the dtype of another; upstream's method changes x itself, and knows no views (Gemma 3n has some)."""
    return x.to(other.dtype)


def install(environment: Environment) -> None:
    """Put the lowerings into a torchax environment, in the place of upstream's."""
    Tensor.type_as = type_as
    environment.override_op_definition(torch.nn.functional.linear, interop.torch_view(linear))
    lowering = interop.torch_view(upsample_nearest2d)
    for overload in (torch.ops.aten.upsample_nearest2d.default, torch.ops.aten.upsample_nearest2d.vec):
        environment.override_op_definition(overload, lowering)
    environment.override_op_definition(torch.ops.aten.convolution.default, interop.torch_view(convolution))
    environment.override_op_definition(torch.ops.aten.gelu.default, interop.torch_view(gelu))
    environment.override_op_definition(torch.ops.aten.native_group_norm.default, interop.torch_view(group_norm))
    environment.override_op_definition(torch.ops.aten.native_layer_norm.default, interop.torch_view(layer_norm))
    attention = torch.nn.functional.scaled_dot_product_attention
    environment.override_op_definition(attention, interop.torch_view(scaled_dot_product_attention))
    environment.override_op_definition(torch.ops.aten._grouped_mm.default, interop.torch_view(grouped_mm))
