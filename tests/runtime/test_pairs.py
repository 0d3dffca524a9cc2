"""Pairs of neighbouring numbers: torch's numbers everywhere, and no array with an axis of two on a TPU."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from hfjax_app.runtime import pairs
from hfjax_app.runtime.module import pure_function

SHAPE = (1, 512, 4, 128)  # rows, tokens, heads, numbers of a head


def turned(_: torch.nn.Module, states: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Neighbours turned by angles, as diffusers' rotary embeddings with real numbers."""
    first, second = states.reshape(*states.shape[:-1], -1, 2).unbind(-1)
    other = torch.stack([-second, first], dim=-1).flatten(3)
    return (states.float() * cosine + other.float() * sine).to(states.dtype)


def turned_as_complex(
    _: torch.nn.Module, states: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor
) -> torch.Tensor:
    """The same with complex numbers."""
    numbers = torch.view_as_complex(states.float().reshape(*states.shape[:-1], -1, 2))
    out = torch.view_as_real(numbers * torch.complex(cosine[..., ::2], sine[..., ::2])).flatten(3)
    return out.to(states.dtype)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_products_move_numbers_exactly(dtype: type) -> None:
    array = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5, 36, 2)), dtype)
    first, second = pairs._apart_by_product(array)
    np.testing.assert_array_equal(first, array[..., 0])
    np.testing.assert_array_equal(second, array[..., 1])
    np.testing.assert_array_equal(pairs._together_by_product(first, second), array)


@pytest.mark.parametrize("function", [turned, turned_as_complex])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rotary_embeddings_are_torch_s(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(SHAPE, generator=generator).to(dtype)
    angles = torch.randn(SHAPE[1], 1, SHAPE[3] // 2, generator=generator).repeat_interleave(2, -1)
    given = states, angles.cos(), angles.sin()
    arrays = [jnp.asarray(each.float().numpy(), str(each.dtype)[6:]) for each in given]
    traced = jax.jit(pure_function(torch.nn.Identity(), function)).trace({}, *arrays)
    got = torch.tensor(traced.lower().compile()({}, *arrays).astype(jnp.float32).tolist())
    torch.testing.assert_close(
        got, function(None, *given).float(), rtol=0, atol=1e-6 if dtype == torch.float32 else 0.04
    )
    # the order of the numbers is a product there, and no axis of two is read or written elsewhere
    on_tpu = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert on_tpu.count("stablehlo.dot_general") == 2
    assert "x64x1x" not in on_tpu
    assert "dot_general" not in traced.lower(lowering_platforms=("cpu",)).as_text()


@pytest.mark.parametrize("shape", [(7, 2), (2, 3), (2, 5, 3, 2)])
def test_other_arrays_are_split_and_stacked_as_torch_does(shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    for dim in range(-len(shape), len(shape)):
        parts = pairs.unbind(jnp.asarray(tensor.numpy()), dim)
        for part, want in zip(parts, tensor.unbind(dim), strict=True):
            np.testing.assert_array_equal(part, want.numpy())
        np.testing.assert_array_equal(pairs.stack(parts, dim), torch.stack(tensor.unbind(dim), dim).numpy())
