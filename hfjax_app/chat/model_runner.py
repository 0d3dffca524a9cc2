"""A causal language model as two compiled programs over slots: prefill_chunk and decode_chunk.

Handles token ids and device arrays only. Which slot does what is the scheduler's business; text is conversation.py's.
"""

import copy
import inspect
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from hfjax_app.chat.kv_cache import KVCache, SlotLayer, allocate, attention_mask, layer_specs, write_rows
from hfjax_app.chat.sampling import SamplerState, sample
from hfjax_app.errors import ModelUnavailable, RequestRejected
from hfjax_app.runtime import attention
from hfjax_app.runtime.module import Weights, pure_function, weights_of
from hfjax_app.runtime.programs import Programs


class DecodeState(NamedTuple):
    """What changes from token to token, one entry a slot; lives on the device."""

    token: jax.Array  # int32 [slots], the newest token, not yet in the cache
    position: jax.Array  # int32 [slots], where that token goes
    left: jax.Array  # int32 [slots], tokens still to make; 0: the slot is finished or free
    sampler: SamplerState  # [slots, ...]


def meta_copy(model: PreTrainedModel, implementation: str) -> PreTrainedModel:
    """The same architecture without weights, with another attention implementation; `model` itself is not touched."""
    with torch.device("meta"):
        bare = type(model)._from_config(copy.deepcopy(model.config), attn_implementation=implementation)
    return bare.eval()


class ModelRunner:
    """Holds the weights, the cache and the two programs of one model.

    Args:
        model: any loaded AutoModelForCausalLM; it is read, never changed.
        slots: conversations that decode together.
        context: tokens a slot holds, prompt and answer.
        end_tokens: ids that end an answer.
        prefill_chunk: prompt tokens a prefill call takes.
        decode_chunk: tokens a decode call makes for each slot.

    Raises:
        RequestRejected: the context is longer than the model's positions.
        ModelUnavailable: the model's architecture is not supported.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        slots: int,
        context: int,
        end_tokens: tuple[int, ...],
        prefill_chunk: int = 64,
        decode_chunk: int = 8,
    ):
        config = model.config.get_text_config(decoder=True)
        positions = getattr(config, "max_position_embeddings", None)
        if positions is not None and context > positions:
            raise RequestRejected(f"context = {context}: this model has {positions} positions")
        self.slots, self.context, self.vocabulary = slots, context, config.vocab_size
        self.prefill_chunk, self.decode_chunk = min(prefill_chunk, context), decode_chunk
        self.end_tokens = end_tokens
        try:
            self._specs = layer_specs(meta_copy(model, "eager"), context, self.prefill_chunk)
            self._model = meta_copy(model, attention.register())
        except Exception as error:
            raise ModelUnavailable(f"{type(model).__name__} can't run on the static cache: {error}") from error
        kinds = getattr(config, "layer_types", None) or [None] * len(self._specs)
        self._kinds = kinds if len(set(kinds)) > 1 else None
        self._keeps_logits = "logits_to_keep" in inspect.signature(self._model.forward).parameters
        self._dtype = model.dtype
        self._forward_torch = pure_function(self._model, self._call_model)
        self.weights = weights_of(model)

    def compile(self, programs: Programs) -> None:
        """Compile both programs and run each once; afterwards the runner never compiles."""
        cache = allocate(self._specs, self.slots, jnp.dtype(str(self._dtype).removeprefix("torch.")))
        zeros = {np.int32: np.zeros(self.slots, np.int32), np.float32: np.zeros(self.slots, np.float32)}
        sampler = SamplerState(
            key=np.zeros((self.slots, 2), np.uint32),
            temperature=zeros[np.float32],
            top_p=np.ones(self.slots, np.float32),
            top_k=zeros[np.int32],
        )
        state = DecodeState(token=zeros[np.int32], position=zeros[np.int32], left=zeros[np.int32], sampler=sampler)
        state = jax.tree.map(jax.device_put, state)
        tokens = np.zeros(self.prefill_chunk, np.int32)
        one = jax.tree.map(lambda leaf: np.zeros(leaf.shape[1:], leaf.dtype), sampler)
        request = (np.int32(0), tokens, np.int32(0), np.int32(1), np.int32(0), one)
        active = np.zeros(self.slots, bool)
        self._prefill = programs.compile(
            "chat_prefill", self._prefill_chunk, self.weights, cache, state, *request, donate=(1, 2)
        )
        self._decode = programs.compile(
            "chat_decode", self._decode_chunk, self.weights, cache, state, active, donate=(1, 2)
        )
        self._cache, self._state = cache, state
        self.prefill(*request)
        self.decode(active)

    def prefill(
        self,
        slot: int,
        tokens: np.ndarray,
        position: int,
        valid: int,
        max_tokens: int,
        sampler: SamplerState,
    ) -> jax.Array:
        """Write a chunk of a prompt into a slot; with the last chunk, sample the first token and start the slot.

        Args:
            slot: which one.
            tokens: int32 [prefill_chunk]; after the first `valid` tokens, padding.
            position: of tokens[0] in the conversation.
            valid: how many tokens are real, at least 1.
            max_tokens: how many tokens the slot is to make in all; 0: this is not the prompt's last chunk.
            sampler: the request's sampling parameters, unbatched.

        Returns:
            int32 scalar on the device: the first token (meaningful with the last chunk).
        """
        scalars = (np.int32(position), np.int32(valid), np.int32(max_tokens))
        self._cache, self._state, first = self._prefill(
            self.weights, self._cache, self._state, np.int32(slot), tokens, *scalars, sampler
        )
        return first

    def decode(self, active: np.ndarray) -> jax.Array:
        """Make up to decode_chunk tokens in every active slot.

        Args:
            active: bool [slots]; an inactive slot computes nothing that is kept, and stays finished.

        Returns:
            int32 [decode_chunk, slots] on the device; -1 where a slot made no token. An end token is the slot's last.
        """
        self._cache, self._state, tokens = self._decode(self.weights, self._cache, self._state, active)
        return tokens

    def _call_model(
        self,
        model: PreTrainedModel,
        tokens: torch.Tensor,
        kv: list[tuple[torch.Tensor, torch.Tensor]],
        rows: list[torch.Tensor],
        masks: list[torch.Tensor],
        positions: torch.Tensor,
        keep: torch.Tensor,
    ) -> Any:
        """The model's own forward on one slot; logits [1, vocabulary] of the token at index `keep`, and the new kv."""
        cache = Cache(layers=[SlotLayer(k[None], v[None], r) for (k, v), r in zip(kv, rows, strict=True)])
        mask = dict(zip(self._kinds, masks, strict=True)) if self._kinds else masks[0]
        options = {"logits_to_keep": keep} if self._keeps_logits else {}
        logits = model(
            tokens[None],
            position_ids=positions[None],
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            **options,
        ).logits[0]
        if not self._keeps_logits:
            logits = logits[keep]
        return logits, [(layer.keys[0], layer.values[0]) for layer in cache.layers]

    def _forward(
        self, weights: Weights, tokens: jax.Array, kv: KVCache, position: jax.Array, valid: jax.Array
    ) -> tuple[jax.Array, KVCache]:
        """tokens [n] of one slot from `position` on, the first `valid` real -> logits [vocabulary] of the last, kv."""
        index = jnp.arange(tokens.shape[0])
        positions = position + index
        last = position + valid - 1
        masks = [attention_mask(spec, positions, last) for spec in self._specs]
        rows = [write_rows(spec, positions, index < valid) for spec in self._specs]
        keep = jnp.maximum(valid - 1, 0)[None]
        logits, kv = self._forward_torch(weights, tokens, kv, rows, masks, positions, keep)
        return logits[0], kv

    def _is_end(self, token: jax.Array) -> jax.Array:
        if not self.end_tokens:
            return jnp.zeros_like(token, bool)
        return jnp.any(token[..., None] == jnp.array(self.end_tokens, jnp.int32), axis=-1)

    def _prefill_chunk(
        self,
        weights: Weights,
        cache: KVCache,
        state: DecodeState,
        slot: jax.Array,
        tokens: jax.Array,
        position: jax.Array,
        valid: jax.Array,
        max_tokens: jax.Array,
        sampler: SamplerState,
    ) -> tuple[KVCache, DecodeState, jax.Array]:
        logits, kv = self._forward(weights, tokens, jax.tree.map(lambda c: c[slot], cache), position, valid)
        cache = jax.tree.map(lambda c, one: c.at[slot].set(one), cache, kv)
        end = position + valid
        batched = jax.tree.map(lambda leaf: leaf[None], sampler)
        first = sample(logits[None], batched, end[None])[0]
        left = jnp.where(self._is_end(first), 0, jnp.maximum(max_tokens - 1, 0))
        started = DecodeState(token=first, position=end, left=left, sampler=sampler)
        return cache, jax.tree.map(lambda old, new: old.at[slot].set(new), state, started), first

    def _decode_chunk(
        self, weights: Weights, cache: KVCache, state: DecodeState, active: jax.Array
    ) -> tuple[KVCache, DecodeState, jax.Array]:
        state = state._replace(left=jnp.where(active, state.left, 0))

        def step(carry: tuple[KVCache, DecodeState], _: None) -> tuple[tuple[KVCache, DecodeState], jax.Array]:
            cache, state = carry
            running = state.left > 0

            def one(kv: KVCache, token: jax.Array, position: jax.Array, runs: jax.Array) -> tuple[jax.Array, KVCache]:
                return self._forward(weights, token[None], kv, position, runs.astype(jnp.int32))

            logits, cache = jax.vmap(one)(cache, state.token, state.position, running)
            position = state.position + running
            token = jnp.where(running, sample(logits, state.sampler, position), state.token)
            left = jnp.where(running & ~self._is_end(token), state.left - 1, 0)
            made = jnp.where(running, token, -1)
            return (cache, state._replace(token=token, position=position, left=left)), made

        (cache, state), made = jax.lax.scan(step, (cache, state), None, length=self.decode_chunk)
        return cache, state, made
