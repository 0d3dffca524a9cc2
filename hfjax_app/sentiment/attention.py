"""Attention of encoders in JAX, used in the place of torch's while a classifier is traced.

Divides by the sum of the exponentials after the product with the values, where the array is head_dim wide and not
tokens wide. XLA on CPU fuses the rest: half the time of torchax's lowering at 512 tokens. Does not cover dropout.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torchax import interop
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "hfjax_encoder"
_MASKED = -1e30  # finite: a row of padding that may look nowhere averages everything instead of becoming NaN


def encoder_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None, scaling: float
) -> jax.Array:
    """Scaled dot-product attention.

    Args:
        query: [batch, heads, tokens, head_dim]; key and value alike.
        mask: bool or added to the scores, broadcastable to [batch, heads, tokens, tokens]; None: all may look at all.
        scaling: factor of the scores.

    Returns:
        [batch, tokens, heads, head_dim].
    """
    scores = jnp.einsum("bhqd,bhkd->bhqk", query * scaling, key)
    if mask is not None:
        scores = jnp.where(mask, scores, _MASKED) if mask.dtype == bool else jnp.maximum(scores + mask, _MASKED)
    largest = jax.lax.stop_gradient(scores.max(-1, keepdims=True))
    weights = jnp.exp(scores - largest)
    out = jnp.einsum("bhqk,bhkd->bhqd", weights, value) / weights.sum(-1, keepdims=True)
    return jnp.swapaxes(out, 1, 2)


def _forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """The signature that AttentionInterface asks for."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return interop.call_jax(encoder_attention, query, key, value, attention_mask, scale), None


@contextmanager
def used_by(model: PreTrainedModel) -> Iterator[None]:
    """While the block runs, the model's attention is ours, where its architecture lets attention be chosen."""
    usual = model.config._attn_implementation
    if not model._supports_attention_backend:
        yield
        return
    AttentionInterface.register(NAME, _forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(usual)
