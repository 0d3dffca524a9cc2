"""Attention by jax's kernel for TPUs, computed step by step on a CPU: its numbers, and what it is used for."""

import jax
import jax.numpy as jnp
import pytest
import torch

from hfjax_app.runtime import flash_attention
from hfjax_app.runtime.module import pure_function


def arrays(batch: int, heads: int, queries: int, keys: int, width: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(batch, heads, tokens, width, generator=generator).bfloat16() for tokens in (queries, keys, keys)
    ]


@pytest.mark.parametrize(
    ("shape", "is_masked"),
    [((1, 2, 1024, 1024, 64), False), ((2, 1, 700, 600, 40), False), ((2, 2, 513, 800, 128), True)],
    ids=["whole blocks", "blocks that are filled up", "keys that are not seen"],
)
def test_the_numbers_are_torch_s(shape: tuple[int, int, int, int, int], is_masked: bool) -> None:
    tensors = arrays(*shape)
    mask = torch.arange(shape[3]) < torch.tensor([[500], [800]]) if is_masked else None
    mask = None if mask is None else mask[:, None, None]
    query, key, value = (jnp.asarray(tensor.float().numpy(), jnp.bfloat16) for tensor in tensors)
    seen = None if mask is None else jnp.asarray(mask.numpy())
    assert flash_attention.suits(query, key, value, seen)
    got = flash_attention.attention(query, key, value, mask=seen, scale=0.125, interpret=True)
    wide = (tensor.float() for tensor in tensors)
    want = torch.nn.functional.scaled_dot_product_attention(*wide, attn_mask=mask, scale=0.125)
    torch.testing.assert_close(torch.tensor(got.astype(jnp.float32).tolist()), want, rtol=0, atol=5e-3)


@pytest.mark.parametrize(
    ("queries", "keys", "dtype", "mask", "by_kernel"),
    [
        (4608, 4608, torch.bfloat16, None, True),
        (4608, 4608, torch.bfloat16, (1, 1, 1, 4608), True),
        (4608, 4608, torch.bfloat16, (1, 1, 4608, 4608), False),
        (4096, 77, torch.bfloat16, None, False),
        (4608, 4608, torch.float32, None, False),
    ],
    ids=["a picture", "a padded prompt beside it", "a mask for each query", "a prompt's keys", "float32"],
)
def test_a_tpu_uses_it_for_many_tokens(
    queries: int, keys: int, dtype: torch.dtype, mask: tuple[int, ...] | None, by_kernel: bool
) -> None:
    attend = pure_function(
        torch.nn.Identity(), lambda _, *args: torch.nn.functional.scaled_dot_product_attention(*args)
    )
    shapes = [jax.ShapeDtypeStruct((1, 24, tokens, 128), str(dtype)[6:]) for tokens in (queries, keys, keys)]
    shapes += [] if mask is None else [jax.ShapeDtypeStruct(mask, bool)]
    traced = jax.jit(attend).trace({}, *shapes)
    on_tpu = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert ("tpu_custom_call" in on_tpu) == by_kernel
    assert f"x{queries}x{keys}xf32" not in on_tpu or keys < 512
    assert "tpu_custom_call" not in traced.lower(lowering_platforms=("cpu",)).as_text()
