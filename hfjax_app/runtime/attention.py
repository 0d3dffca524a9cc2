"""Attention in JAX, registered with transformers' public AttentionInterface under the name `hfjax`.

Grouped-query attention without repeating keys and values, with soft-capping, softmax in float32. The mask comes ready
made from the caller. Does not cover attention sinks or ALiBi.
"""

from typing import Any

import jax
import jax.numpy as jnp
import torch
from torchax import interop
from transformers import AttentionInterface

NAME = "hfjax"


def grouped_query_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, scaling: float, softcap: float | None = None
) -> jax.Array:
    """Scaled dot-product attention where each key-value head serves a group of query heads.

    Args:
        query: [batch, heads, queries, head_dim].
        key: [batch, kv_heads, rows, head_dim]; heads is a multiple of kv_heads.
        value: [batch, kv_heads, rows, value_dim].
        mask: bool, broadcastable to [batch, 1, queries, rows]; True where a query may look.
        scaling: factor of the scores, usually head_dim ** -0.5.
        softcap: where given, scores become softcap * tanh(scores / softcap) (Gemma 2, arXiv:2408.00118, section 2).

    Returns:
        [batch, queries, heads, value_dim], in the dtype of `query`.
    """
    batch, heads, queries, head_dim = query.shape
    kv_heads = key.shape[1]
    grouped = query.reshape(batch, kv_heads, heads // kv_heads, queries, head_dim)
    scores = jnp.einsum("bkgqd,bkrd->bkgqr", grouped, key, preferred_element_type=jnp.float32) * scaling
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    scores = jnp.where(mask[:, :, None], scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    out = jnp.einsum("bkgqr,bkrv->bqkgv", weights, value, preferred_element_type=jnp.float32)
    return out.reshape(batch, queries, heads, value.shape[-1]).astype(query.dtype)


def _attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """The signature that AttentionInterface asks for; sliding windows are already in the mask."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return interop.call_jax(grouped_query_attention, query, key, value, attention_mask, scale, softcap), None


def register() -> str:
    """Make the attention known to transformers and return its name for `attn_implementation`."""
    AttentionInterface.register(NAME, _attention_forward)
    return NAME
