"""Attention in JAX, registered with transformers' public AttentionInterface under the name `hfjax`.

Grouped-query attention without repeating keys and values, with soft-capping and attention sinks, softmax in float32.
The mask is transformers' own function of positions, evaluated where the cache says its rows are. Architectures with
an attention of their own (Bloom's ALiBi, for one) keep it.
"""

from typing import Any

import jax
import jax.numpy as jnp
import torch
from torchax import interop
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "hfjax"


def grouped_query_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    scaling: float,
    softcap: float | None = None,
    sinks: jax.Array | None = None,
) -> jax.Array:
    """Scaled dot-product attention where each key-value head serves a group of query heads.

    Args:
        query: [batch, heads, queries, head_dim].
        key: [batch, kv_heads, rows, head_dim]; heads is a multiple of kv_heads.
        value: [batch, kv_heads, rows, value_dim].
        mask: broadcastable to [batch, 1 or heads, queries, rows]; bool: True where a query may look; float: added.
        scaling: factor of the scores, usually head_dim ** -0.5.
        softcap: where given, scores become softcap * tanh(scores / softcap) (Gemma 2, arXiv:2408.00118, section 2).
        sinks: where given, [heads]: one more score a head, which takes its share of the softmax and adds nothing
            (GPT-OSS; arXiv:2309.17453).

    Returns:
        [batch, queries, heads, value_dim], in the dtype of `query`.
    """
    batch, heads, queries, head_dim = query.shape
    kv_heads = key.shape[1]
    grouped = query.reshape(batch, kv_heads, -1, head_dim)
    # dot_general keeps this order of operands, in which no copy of the keys and values is made; einsum turns it round
    scores = jax.lax.dot_general(
        grouped, key, (((3,), (3,)), ((0, 1), (0, 1))), preferred_element_type=jnp.float32
    ).reshape(batch, kv_heads, -1, queries, key.shape[2])
    scores *= scaling
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    mask = mask[:, :, None] if mask.shape[1] == 1 else mask.reshape(batch, kv_heads, -1, *mask.shape[2:])
    scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min) if mask.dtype == bool else scores + mask
    if sinks is not None:
        sink = jnp.broadcast_to(sinks.reshape(1, kv_heads, -1, 1, 1), (*scores.shape[:-1], 1)).astype(jnp.float32)
        scores = jnp.concatenate([scores, sink], axis=-1)
    weights = jax.nn.softmax(scores, axis=-1)[..., : key.shape[2]].astype(value.dtype)
    out = jax.lax.dot_general(
        weights.reshape(*grouped.shape[:3], -1),
        value,
        (((3,), (2,)), ((0, 1), (0, 1))),
        preferred_element_type=jnp.float32,
    )
    out = out.reshape(batch, heads, queries, value.shape[-1])
    return out.swapaxes(1, 2).astype(query.dtype)


def _attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """The signature that AttentionInterface asks for; sliding windows are already in the mask."""
    if query.device.type == "meta":  # the cache layout is read off a forward without values
        return query.new_empty((*query.shape[:-1], value.shape[-1])).transpose(1, 2), None
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return interop.call_jax(grouped_query_attention, query, key, value, attention_mask, scale, softcap, s_aux), None


def _mask(*args: Any, **options: Any) -> torch.Tensor:
    """bool [batch, 1, queries, rows]: transformers' mask function at the cache's positions, never left out."""
    skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False, "use_vmap": False}
    return sdpa_mask(*args, **options | skips)


def register() -> str:
    """Make the attention and its masks known to transformers and return their name for `attn_implementation`."""
    AttentionInterface.register(NAME, _attention_forward)
    AttentionMaskInterface.register(NAME, _mask)
    return NAME
