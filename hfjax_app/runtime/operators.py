"""torchax lowerings that upstream lacks, or that are wrong or slow there.

Each is a plain JAX function with the signature of its aten operator. Here float32 and int32 are the widest dtypes, and
no lowering warns. `attention.py` has the attention of language models.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torchax import interop
from torchax.tensor import Environment

from hfjax_app.runtime import flash_attention, pairs, token_parts
from hfjax_app.runtime.cpu.linear import linear
from hfjax_app.runtime.seams import torchax as seam

_MASKED = -1e30  # finite: a query whose keys are all masked gives their average and not NaN
QUERY_BLOCK = 512  # queries whose scores are computed at once, with a mask or on accelerators
# By the compiler's estimates for 24 heads and 4,608 tokens on v5e, blocks of 128 queries take 6.5 ms, of 64 8.3, of 512
# 15.7. A core of v5e or v6e has 128 MiB of its own memory.
_SCORES_ON_CHIP, _LEAST_BLOCK = 16 << 20, 64
_MOST_SCORES = 1 << 20  # so many scores stay in a CPU's cache until the softmax reads them again


def upsample_nearest2d(
    image: jax.Array,
    output_size: Sequence[int] | None,
    scales_h: float | Sequence[float] | None = None,
    scales_w: float | None = None,
) -> jax.Array:
    """Nearest-neighbour upsampling: output[y, x] = image[y * height // new height, x * width // new width], or with
    factors image[floor(y / factor), floor(x / factor)].

    Upstream gathers with int64 indices, which JAX truncates to int32 with a warning at every trace. Integer factors,
    the only ones in diffusion models, are a broadcast here.

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
    """The source index, out of `old`, of each of `new` outputs."""
    if factor is None:
        return jnp.arange(new, dtype=jnp.int32) * old // new
    return jnp.minimum(jnp.floor(jnp.arange(new) * jnp.float32(1 / factor)).astype(jnp.int32), old - 1)


def upsample_bilinear2d_aa(
    image: jax.Array,
    output_size: Sequence[int],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> jax.Array:
    """Bilinear scaling with antialiasing, as two products with torch's own weights; upstream's lowering fails.

    Args:
        image: [batch, channels, height, width].
        output_size: the new height and width.
        align_corners: as in torch.
        scales_h, scales_w: factors, which torch's sizes agree with.
    """
    rows, columns = (
        _bilinear(int(new), old, align_corners) for new, old in zip(output_size, image.shape[2:], strict=True)
    )
    return jnp.einsum("nh,bchw,mw->bcnm", rows, image, columns, precision="highest").astype(image.dtype)


def _bilinear(new: int, old: int, align_corners: bool) -> np.ndarray:
    """float32 [new, old]: the weights of the old numbers in each new one, along an axis."""

    def weights() -> torch.Tensor:
        numbers = torch.eye(old)[None, None]
        options: dict[str, Any] = {"mode": "bilinear", "align_corners": align_corners, "antialias": True}
        return torch.nn.functional.interpolate(numbers, size=(new, old), **options)[0, 0]

    found: np.ndarray = seam.on_host(lambda: weights().numpy())
    return found


def _upstream(*arguments: Any) -> jax.Array:
    out: jax.Array = seam.upstream(torch.ops.aten.convolution, *arguments)
    return out


def convolution(
    image: jax.Array, weight: jax.Array, bias: jax.Array | None, stride: Sequence[int], *rest: Any
) -> jax.Array:
    """Upstream's convolution, but with one call per group for transposed convolutions, whose groups it mixes up.

    Args:
        image: [batch, inputs, height, width], or with one or three spatial axes.
        weight: [outputs, inputs, height, width].
        bias: [outputs] or None.
        stride: of each axis.
        rest: padding, dilation, transposed, output padding, groups.
    """
    *others, transposed, more, groups = rest
    if not transposed or groups == 1:
        return _upstream(image, weight, bias, stride, *rest)
    parts = zip(jnp.split(image, groups, axis=1), jnp.split(weight, groups), strict=True)
    outputs = [_upstream(*part, None, stride, *others, transposed, more, 1) for part in parts]
    out = jnp.concatenate(outputs, axis=1)
    return out if bias is None else out + bias.reshape(-1, *[1] * (out.ndim - 2))


def gelu(x: jax.Array, *, approximate: str = "none") -> jax.Array:
    """x times the normal distribution function at x, or with approximate="tanh" its approximation.

    Upstream uses erfc, which is exact where the result is nearly zero: two polynomials, an exponential and a division
    per number, 5 to 20 % of a small encoder's time on a CPU. Like torch this uses erf, and computes half-precision
    inputs in float32.

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
    """Each group of channels minus its mean, divided by its standard deviation, in float32 as in torch.

    Upstream rounds the mean to the dtype of the image before the subtraction, and maps over a single element. Inside,
    channels are the last axis, as in XLA's convolutions on a CPU: an autoencoder takes half the time of torch's order.

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
    """The last axes minus their mean, divided by their standard deviation, in float32 as in torch.

    Upstream rounds intermediate results.

    Args:
        x: [..., *shape].
        shape: of the axes that are normalised together.
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

    There the array has the width of a head and not the number of keys; the softmax is float32. Upstream scales, adds a
    mask of zeros and divides over all pairs of query and key, which XLA on a CPU does in separate steps: a UNet takes a
    quarter less time this way. On a CPU many scores are computed head by head, which halves the time for 1,024 pixels,
    on a TPU by jax's own kernel.

    Args:
        query: [..., queries, head_dim].
        key: [..., keys, head_dim].
        value: [..., keys, value_dim].
        attn_mask: bool, True where a query may attend, or added to the scores; broadcastable to [..., queries, keys].
        dropout_p: always 0: nothing is trained here.
        is_causal: whether a query attends to the keys up to its own position only.
        scale: factor of the scores; None: head_dim ** -0.5.
        enable_gqa: whether each key head serves several query heads.

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
    return token_parts.attention(functools.partial(_attend, scale=scale), query, key, value, attn_mask)


def _attend(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None, *, scale: float) -> jax.Array:
    """`scaled_dot_product_attention` on one device."""
    together = functools.partial(_attention, mask=mask, scale=scale)
    in_blocks = functools.partial(_in_blocks, mask=mask, scale=scale)
    on_others: Any = together
    if query.shape[-2] > QUERY_BLOCK:
        on_others = functools.partial(in_blocks, size=_block_size(query, key))
    on_tpu = {}
    if flash_attention.suits(query, key, value, mask):
        on_tpu = {"tpu": functools.partial(flash_attention.attention, mask=mask, scale=scale)}
    out: jax.Array
    if mask is not None and query.shape[-2] > QUERY_BLOCK:
        out = jax.lax.platform_dependent(query, key, value, cpu=in_blocks, default=on_others, **on_tpu)
        return out
    shared = not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]  # several heads or images share keys
    if shared or mask is not None or math.prod(query.shape[:-1]) * key.shape[-2] <= _MOST_SCORES:
        return together(query, key, value)
    head_by_head = functools.partial(_each_head, together)
    out = jax.lax.platform_dependent(query, key, value, cpu=head_by_head, default=on_others, **on_tpu)
    return out


def _block_size(query: jax.Array, key: jax.Array) -> int:
    """Queries whose scores stay in a chip's own memory: a power of two, so that they fill the matrix unit."""
    scores = math.prod(query.shape[:-2]) * key.shape[-2]
    return min(QUERY_BLOCK, max(_LEAST_BLOCK, 1 << (_SCORES_ON_CHIP // scores or 1).bit_length() - 1))


def _in_blocks(
    query: jax.Array, key: jax.Array, value: jax.Array, *, mask: jax.Array | None, scale: float, size: int = QUERY_BLOCK
) -> jax.Array:
    """Attention of so many queries at a time: the scores of a long text or of a picture would take gigabytes."""
    queries = query.shape[-2]
    more = -queries % size

    def blocks(array: jax.Array) -> jax.Array:
        """[blocks, ..., size, width]; the last one is filled up."""
        padded = jnp.pad(array, [*[(0, 0)] * (array.ndim - 2), (0, more), (0, 0)])
        return jnp.moveaxis(padded.reshape(*array.shape[:-2], -1, size, array.shape[-1]), -3, 0)

    def attend(block: tuple[jax.Array, jax.Array | None]) -> jax.Array:
        return _attention(block[0], key, value, mask=block[1], scale=scale)

    rows = None if mask is None else blocks(jnp.broadcast_to(mask, (*mask.shape[:-2], queries, mask.shape[-1])))
    out = jnp.moveaxis(jax.lax.map(attend, (blocks(query), rows)), 0, -3)
    return out.reshape(*out.shape[:-3], -1, out.shape[-1])[..., :queries, :]


def _each_head(attention: Callable[..., jax.Array], query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Attention head by head: the scores of all heads would not fit a CPU's cache."""
    heads = jax.tree.map(lambda array: array.reshape(-1, *array.shape[-2:]), (query, key, value))
    # unrolled, because between two iterations the other cores of a CPU are idle
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
    """Each group of rows times its matrix: a mixture of experts with tokens sorted by expert.

    Args:
        rows: [tokens, in].
        matrices: [groups, in, out].
        offsets: int32 [groups], the end of each group of rows.
        bias, out_dtype: arguments of the operator that are always None.

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
    """Several sequences are one product, sorted by group: each matrix is read once for all of them."""
    assert batched == [True, False, True], "experts are shared"
    count = rows.shape[1]
    ends = jnp.cumsum(sizes, axis=1)
    group = jnp.sum(jnp.arange(count)[None, :, None] >= ends[:, None, :], axis=-1).reshape(-1)
    order = jnp.argsort(group, stable=True)
    sizes = jnp.sum(sizes, axis=0)
    product = _ragged_dot(rows.reshape(batch * count, -1)[order], matrices, sizes)
    return jnp.zeros_like(product).at[order].set(product).reshape(batch, count, -1), True


def type_as(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """x in the dtype of another tensor; upstream's method changes x itself and fails for views (used by Gemma 3n)."""
    return x.to(other.dtype)


def assigned(array: jax.Array, places: tuple[slice, ...], new: Any) -> jax.Array:
    """An array with other values in slices without steps, put together of its parts.

    Upstream updates in place, and on a CPU XLA mixes that up with what is computed of the same slice: of a rotary
    embedding, one half of a head reads the other half as already new.

    Args:
        array: [...].
        places: a slice for each of the first axes.
        new: broadcastable to `array[places]`.
    """

    def put(part: jax.Array, axis: int) -> jax.Array:
        if axis == len(places):
            return values
        first, last, _ = places[axis].indices(array.shape[axis])
        inside = (first, max(first, last))
        before, within, behind = (
            jax.lax.slice_in_dim(part, *ends, axis=axis)
            for ends in ((0, first), inside, (inside[1], array.shape[axis]))
        )
        return jnp.concatenate([before, put(within, axis + 1), behind], axis)

    values = jnp.broadcast_to(jnp.asarray(new, array.dtype), array[places].shape)
    return put(array, 0)


def install(environment: Environment) -> None:
    """Register the lowerings in a torchax environment, instead of upstream's."""
    seam.replace_type_as(type_as)
    seam.replace_assignment(assigned)
    environment.override_op_definition(torch.nn.functional.linear, interop.torch_view(linear))
    lowering = interop.torch_view(upsample_nearest2d)
    for overload in (torch.ops.aten.upsample_nearest2d.default, torch.ops.aten.upsample_nearest2d.vec):
        environment.override_op_definition(overload, lowering)
    scaling = interop.torch_view(upsample_bilinear2d_aa)
    environment.override_op_definition(torch.ops.aten._upsample_bilinear2d_aa.default, scaling)
    environment.override_op_definition(torch.ops.aten.convolution.default, interop.torch_view(convolution))
    environment.override_op_definition(torch.ops.aten.gelu.default, interop.torch_view(gelu))
    environment.override_op_definition(torch.ops.aten.native_group_norm.default, interop.torch_view(group_norm))
    environment.override_op_definition(torch.ops.aten.native_layer_norm.default, interop.torch_view(layer_norm))
    attention = torch.nn.functional.scaled_dot_product_attention
    environment.override_op_definition(attention, interop.torch_view(scaled_dot_product_attention))
    environment.override_op_definition(torch.ops.aten._grouped_mm.default, interop.torch_view(grouped_mm))
    aten = torch.ops.aten
    for operator in (aten.unbind.int, aten.stack.default, aten.view_as_complex.default, aten.view_as_real.default):
        lowering = interop.torch_view(getattr(pairs, operator.overloadpacket.__name__))
        environment.override_op_definition(operator, lowering)
