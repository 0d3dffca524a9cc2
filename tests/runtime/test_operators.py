"""Our lowerings compared with torch."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from hfjax_app.runtime import operators
from hfjax_app.runtime.module import pure_function, weights_of
from hfjax_app.runtime.operators import grouped_mm


@pytest.mark.parametrize("size", [(8, 10), (4, 15), (7, 6), (3, 4)])
def test_upsample_nearest_equals_torch(size: tuple[int, int]) -> None:
    """Integer and fractional factors, up and down."""
    image = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    upsample = torch.nn.Upsample(size=size)
    got = jax.jit(pure_function(upsample))({}, image)
    np.testing.assert_array_equal(np.asarray(got), upsample(torch.from_numpy(image)).numpy())


@pytest.mark.parametrize("size", [(8, 6), (3, 2), (4, 5)])
def test_bilinear_scaling_with_antialiasing_equals_torch(size: tuple[int, int]) -> None:
    """Up, down, and on one axis."""
    image = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)

    def scaled(_: torch.nn.Module, image: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.interpolate(image, size=size, mode="bilinear", antialias=True)

    got = jax.jit(pure_function(torch.nn.Identity(), scaled))({}, image)
    right = scaled(torch.nn.Identity(), torch.from_numpy(image)).numpy()
    np.testing.assert_allclose(np.asarray(got), right, atol=1e-6)


def test_upsample_nearest_by_a_factor_equals_torch() -> None:
    """The overload without a size."""
    image = np.random.default_rng(0).standard_normal((1, 2, 3, 3)).astype(np.float32)
    upsample = torch.nn.Upsample(scale_factor=2.0)
    got = jax.jit(pure_function(upsample))({}, image)
    np.testing.assert_array_equal(np.asarray(got), upsample(torch.from_numpy(image)).numpy())


@pytest.mark.parametrize("factor", [1.7, 2.3, 0.6])
def test_upsample_nearest_by_a_fractional_factor_equals_torch(factor: float) -> None:
    """torch divides by the factor; the ratio of the sizes would select other pixels."""
    image = np.random.default_rng(0).standard_normal((1, 2, 9, 11)).astype(np.float32)
    upsample = torch.nn.Upsample(scale_factor=factor)
    got = jax.jit(pure_function(upsample))({}, image)
    np.testing.assert_array_equal(np.asarray(got), upsample(torch.from_numpy(image)).numpy())


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_transposed_convolution_in_groups_equals_torch(groups: int) -> None:
    """Upstream gave wrong numbers for groups of several channels, without a warning."""
    torch.manual_seed(0)
    layer = torch.nn.ConvTranspose2d(4, 8, 3, stride=2, padding=1, output_padding=1, groups=groups)
    image = torch.randn(2, 4, 5, 6)
    got = jax.jit(pure_function(layer))(weights_of(layer), image.numpy())
    np.testing.assert_allclose(np.asarray(got), layer(image).detach().numpy(), rtol=1e-5, atol=1e-5)


def test_type_as_does_not_change_its_tensor() -> None:
    """Upstream changed the tensor itself, and failed where the other one was a view, as in Gemma 3n."""

    def rounded_and_exact(_: torch.nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        exact = x.float() / 3
        return exact.type_as(x[0]), exact

    x = jnp.ones((2, 3), jnp.bfloat16)
    rounded, exact = jax.jit(pure_function(torch.nn.Identity(), rounded_and_exact))({}, x)
    assert (rounded.dtype, exact.dtype) == (jnp.bfloat16, jnp.float32)


def test_a_rotated_slice_is_assigned_as_in_torch() -> None:
    """Of a head's halves the second one was computed of the first one's new values: XLA updates in place on a CPU."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 2, 80, 16)

    def attention(_: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        for states in (query := query + 0, key := key + 0):
            first, second = states[:, :, 16:].chunk(2, dim=-1)
            states[:, :, 16:] = states[:, :, 16:] * 2 + torch.cat([-second, first], dim=-1)
        return torch.softmax(query @ key.transpose(-1, -2) / 4, dim=-1) @ value

    arrays = [jnp.asarray(each.numpy()) for each in (query, key, value)]
    got = jax.jit(pure_function(torch.nn.Identity(), attention))({}, *arrays)
    np.testing.assert_allclose(np.asarray(got), attention(torch.nn.Identity(), query, key, value), atol=1e-5)


@pytest.mark.parametrize(
    "places",
    [
        (slice(None), slice(1, 3)),
        (slice(-3, None), slice(None, -1), slice(2, 2)),
        (slice(5, 2),),
        (slice(0, 9), Ellipsis, slice(1, None)),
        (Ellipsis,),
        slice(1, 3),
        (slice(None, None, 2),),
        (slice(1, 3), 2),
        (slice(1, 3), None),
        ([0, 2], slice(1, 2)),
    ],
    ids=str,
)
def test_assignment_equals_torch(places: Any) -> None:
    """To a tensor and to a view."""

    def changed(_: torch.nn.Module, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        own, seen = tensor + 0, tensor + 0
        own[places] = -own[places][..., :1]
        seen[1:][places] = -1.0
        return own, seen

    tensor = torch.arange(120.0).reshape(5, 4, 6)
    got = jax.jit(pure_function(torch.nn.Identity(), changed))({}, tensor.numpy())
    for one, right in zip(got, changed(torch.nn.Identity(), tensor), strict=True):
        np.testing.assert_array_equal(np.asarray(one), right.numpy())


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gelu_equals_torch(approximate: str, dtype: torch.dtype) -> None:
    """On both sides of zero, and far from it, where the exact result is nearly zero. Half precision: the last digit."""
    x = torch.linspace(-12, 12, 97).to(dtype)
    module = torch.nn.GELU(approximate)
    got = jax.jit(pure_function(module))(
        {}, jnp.asarray(x.float().numpy(), "float32" if x.itemsize == 4 else "bfloat16")
    )
    exact = {torch.float32: {"rtol": 1e-6, "atol": 1e-6}, torch.bfloat16: {"rtol": 2**-7, "atol": 1e-2}}[dtype]
    np.testing.assert_allclose(np.asarray(got, np.float32), module(x).float().numpy(), **exact)


def expert_products(rows: np.ndarray, matrices: np.ndarray, sizes: list[int]) -> np.ndarray:
    parts = np.split(rows, np.cumsum(sizes)[:-1])
    return np.concatenate([part @ matrix for part, matrix in zip(parts, matrices, strict=True)])


def test_grouped_products_equal_one_product_a_group() -> None:
    """A mixture of experts with tokens sorted by expert; one expert has no tokens."""
    generator = np.random.default_rng(0)
    rows, matrices = (generator.standard_normal(shape).astype(np.float32) for shape in ((7, 6), (4, 6, 5)))
    offsets = np.cumsum([2, 0, 4, 1]).astype(np.int32)
    product = pure_function(
        torch.nn.Identity(), lambda _, *args: torch.nn.functional.grouped_mm(*args[:2], offs=args[2])
    )
    got = jax.jit(product)({}, rows, matrices, offsets)
    np.testing.assert_allclose(np.asarray(got), expert_products(rows, matrices, [2, 0, 4, 1]), atol=1e-5)


def test_grouped_products_of_several_sequences_read_each_matrix_once() -> None:
    """Slots decode under vmap: one ragged product for all slots, not one for each."""
    generator = np.random.default_rng(0)
    rows, matrices = (generator.standard_normal(shape).astype(np.float32) for shape in ((3, 7, 6), (4, 6, 5)))
    sizes = [[2, 0, 4, 1], [7, 0, 0, 0], [1, 2, 2, 2]]
    offsets = np.cumsum(sizes, axis=1).astype(np.int32)
    product = jax.vmap(grouped_mm, in_axes=(0, None, 0))
    got = jax.jit(product)(rows, matrices, offsets)
    for one, sequence, counts in zip(np.asarray(got), rows, sizes, strict=True):
        np.testing.assert_allclose(one, expert_products(sequence, matrices, counts), atol=1e-5)
    assert str(jax.make_jaxpr(product)(rows, matrices, offsets)).count("ragged_dot_general[") == 1


HALF = {torch.float32: 2e-6, torch.bfloat16: 2**-7}  # relative to the result: half precision differs in its last digit


@pytest.mark.parametrize("dtype", HALF)
def test_group_norm_equals_torch(dtype: torch.dtype) -> None:
    """Far from zero too, where the error of a half-precision mean would exceed the centred values."""
    generator = torch.Generator().manual_seed(0)
    image = (50 + torch.randn(2, 8, 5, 3, generator=generator)).to(dtype)
    check_norm(torch.nn.GroupNorm(4, 8).to(dtype), image, generator)


@pytest.mark.parametrize("dtype", HALF)
def test_layer_norm_equals_torch(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = (50 + torch.randn(2, 5, 16, generator=generator)).to(dtype)
    check_norm(torch.nn.LayerNorm(16).to(dtype), x, generator)


def check_norm(module: torch.nn.Module, x: torch.Tensor, generator: torch.Generator) -> None:
    with torch.no_grad():
        module.weight.normal_(generator=generator), module.bias.normal_(generator=generator)
    got = jax.jit(pure_function(module))(weights_of(module), as_jax(x))
    want = module(x).detach().float().numpy()
    np.testing.assert_allclose(np.asarray(got, np.float32), want, rtol=HALF[x.dtype], atol=40 * HALF[x.dtype])


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(
    "options",
    [{}, {"scale": 0.3}, {"is_causal": True}, {"enable_gqa": True}, {"attn_mask": "bool"}, {"attn_mask": "added"}],
    ids=str,
)
def test_attention_equals_torch(options: dict[str, Any], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    heads = 2 if options.get("enable_gqa") else 4
    query = torch.randn(2, 4, 5, 8, generator=generator).to(dtype)
    key, value = (torch.randn(2, heads, 7, 8, generator=generator).to(dtype) for _ in range(2))
    tensors = {"query": query, "key": key, "value": value}
    looks = torch.rand(2, 1, 5, 7, generator=generator) < 0.6
    looks[..., 0] = True
    mask = {"bool": looks, "added": torch.zeros(2, 1, 5, 7, dtype=dtype).masked_fill(~looks, torch.finfo(dtype).min)}
    if "attn_mask" in options:
        tensors["attn_mask"] = mask[options["attn_mask"]]
    plain = {name: value for name, value in options.items() if name != "attn_mask"}
    attention = pure_function(
        torch.nn.Identity(),
        lambda _, given: torch.nn.functional.scaled_dot_product_attention(**given, **plain),
    )
    got = jax.jit(attention)({}, {name: as_jax(tensor) for name, tensor in tensors.items()})
    want = torch.nn.functional.scaled_dot_product_attention(**tensors, **plain).float().numpy()
    np.testing.assert_allclose(np.asarray(got, np.float32), want, rtol=HALF[dtype], atol=2 * HALF[dtype])


@pytest.mark.parametrize("added", [False, True], ids=["bool", "added"])
def test_a_query_with_all_keys_masked_attends_to_all(added: bool) -> None:
    """Padding in some models: NaN in its row would spread to all rows in the next layer."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 2, 3, 4, generator=generator) for _ in range(3))
    mask = torch.ones(1, 1, 3, 3, dtype=torch.bool)
    mask[..., 1, :] = False
    given = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf) if added else mask
    attention = pure_function(
        torch.nn.Identity(),
        lambda _, *args: torch.nn.functional.scaled_dot_product_attention(*args),
    )
    got = np.asarray(jax.jit(attention)({}, *map(as_jax, (query, key, value, given))))
    np.testing.assert_allclose(got[:, :, 1], value.mean(2).numpy(), rtol=1e-6, atol=1e-6)
    want = torch.nn.functional.scaled_dot_product_attention(query, key, value).numpy()
    np.testing.assert_allclose(got[:, :, ::2], want[:, :, ::2], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", HALF)
def test_attention_of_many_scores_equals_torch(dtype: torch.dtype) -> None:
    """So many that a CPU computes head by head."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 4, 400, 8, generator=generator).to(dtype) for _ in range(3))
    attention = pure_function(
        torch.nn.Identity(), lambda _, *args: torch.nn.functional.scaled_dot_product_attention(*args)
    )
    program = jax.jit(attention).lower({}, *map(as_jax, (query, key, value))).compile()
    assert " while(" in program.as_text()
    got = program({}, *map(as_jax, (query, key, value)))
    want = torch.nn.functional.scaled_dot_product_attention(query, key, value).float().numpy()
    np.testing.assert_allclose(np.asarray(got, np.float32), want, rtol=HALF[dtype], atol=2 * HALF[dtype])


def test_attention_of_many_scores_with_shared_keys_equals_torch() -> None:
    """One key head for all query heads, by broadcasting."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, 400, 8, generator=generator)
    key, value = (torch.randn(1, 1, 400, 8, generator=generator) for _ in range(2))
    attention = pure_function(
        torch.nn.Identity(), lambda _, *args: torch.nn.functional.scaled_dot_product_attention(*args)
    )
    got = jax.jit(attention)({}, *map(as_jax, (query, key, value)))
    want = torch.nn.functional.scaled_dot_product_attention(query, key, value).numpy()
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1, 1100, 700), (2, 4, 1100, 700), (1100, 700), (2, 1, 1, 700)], ids=str)
@pytest.mark.parametrize("added", [False, True], ids=["bool", "added"])
def test_attention_of_many_queries_with_a_mask_equals_torch(shape: tuple[int, ...], added: bool) -> None:
    """In blocks of queries, the last of which is filled up."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, 1100, 8, generator=generator)
    key, value = (torch.randn(2, 4, 700, 8, generator=generator) for _ in range(2))
    mask = torch.rand(shape, generator=generator) < 0.7
    given = torch.zeros(shape).masked_fill(~mask, -torch.inf) if added else mask
    attention = pure_function(
        torch.nn.Identity(), lambda _, *args: torch.nn.functional.scaled_dot_product_attention(*args)
    )
    program = jax.jit(attention).lower({}, *map(as_jax, (query, key, value, given))).compile()
    assert " while(" in program.as_text()
    got = program({}, *map(as_jax, (query, key, value, given)))
    want = torch.nn.functional.scaled_dot_product_attention(query, key, value, given).numpy()
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-4, atol=1e-5)


def as_jax(tensor: torch.Tensor) -> jax.Array:
    if tensor.dtype == torch.bool:
        return jnp.asarray(tensor.numpy())
    return jnp.asarray(tensor.float().numpy(), str(tensor.dtype).removeprefix("torch."))


def test_attention_of_a_picture_holds_no_square_of_scores_on_accelerators() -> None:
    """24 heads over 4,608 tokens have 2 GB of scores; in blocks the same numbers come out. In bfloat16 a TPU has a
    kernel instead (test_flash_attention.py)."""
    tokens, heads = 4608, 24
    shape = jax.ShapeDtypeStruct((1, heads, tokens, 128), jnp.float32)
    traced = jax.jit(operators.scaled_dot_product_attention).trace(shape, shape, shape)
    for platform in ("tpu", "cuda"):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert f"x128x{tokens}x" in text
        assert f"x{tokens}x{tokens}x" not in text
    query, key, value = (jnp.asarray(torch.randn(1, 2, 300, 8).numpy()) for _ in range(3))
    blocks = operators._in_blocks(query, key, value, mask=None, scale=0.5, size=128)
    whole = operators._attention(query, key, value, mask=None, scale=0.5)
    np.testing.assert_allclose(blocks, whole, rtol=0, atol=1e-6)
