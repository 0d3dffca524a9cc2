"""The static key-value cache: what each layer stores for each slot.

A slot holds one conversation. An attention layer stores keys and values; a layer with room for N positions stores the
token at position p at index p % N. A full layer has room for the context. A sliding-window layer has room for window +
chunk positions and is a ring, so that a whole prefill chunk can be written before it is attended to. A recurrent layer
(state space, linear attention, short convolution) stores states whose size does not depend on the length. Does not
cover how a forward sees a slot (slot_view.py) and how tokens are written (kv_cache_write.py).
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.sharding import Mesh
from transformers import PreTrainedModel
from transformers.cache_utils import (
    CacheLayerMixin,
    DummyLayer,
    DynamicCache,
    DynamicIndexedLayer,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
)

from hfjax_app.chat.model.kv_cache_write import only_before
from hfjax_app.runtime import head_packing
from hfjax_app.runtime.head_packing import HeadPacking
from hfjax_app.runtime.mesh import replicated, split
from hfjax_app.runtime.seams.torchax import jax_dtype

# One layer: leaves by name. Leaves with positions: "keys" and "values" [slots, kv_heads, length, dim], packed where
# several heads share a row, and "indexer" [slots, 1, length, dim] (sparse attention). Leaves without: the states
# "conv0", "recurrent0", ... [slots, ...]. A single slot's leaves have no first axis. A layer that stores nothing is an
# empty dict.
LayerCache = dict[str, jax.Array]
KVCache = list[LayerCache]
CacheShape = list[dict[str, jax.ShapeDtypeStruct]]
WITH_POSITIONS = ("keys", "values", "indexer")


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """One array of a layer: its name, the shape of one slot, and its numpy dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """What one layer stores.

    Args:
        leaves: its arrays; none for a layer that stores nothing or reads another layer's.
        positions: how many positions it has room for; the context where nothing depends on the length.
        window: tokens that a query sees, itself included; None: all of them.
        heads_per_row: how many heads of keys and values share a row, see `runtime/head_packing.py`.
        rollback: how many of the newest tokens can be replaced by others: all in a full layer; in a ring, as many as
            leave the window of the oldest of them complete; none in a layer with a state.
    """

    leaves: tuple[Leaf, ...]
    positions: int
    rollback: int
    window: int | None = None
    heads_per_row: int = 1

    @property
    def is_recurrent(self) -> bool:
        """Whether it stores a state, which every token changes irreversibly."""
        return any(leaf.name not in WITH_POSITIONS for leaf in self.leaves)

    @property
    def is_attention(self) -> bool:
        return any(leaf.name in WITH_POSITIONS for leaf in self.leaves)


def rollback(specs: tuple[LayerSpec, ...]) -> int:
    """How many of the newest tokens can be rolled back in every layer."""
    return min(spec.rollback for spec in specs)


def layer_specs(
    model: PreTrainedModel, context: int, chunk: int, packing: HeadPacking, option: str, inputs: dict[str, Any]
) -> tuple[LayerSpec, ...]:
    """The cache layout of any causal model, found by one token's forward on the meta device.

    transformers' DynamicCache determines which layers slide or store states, and what the model writes into it
    determines the shapes, so no architecture's config names are needed.

    Args:
        model: a model on the meta device.
        context: tokens a slot holds.
        chunk: the largest number of tokens written at once.
        packing: how heads share rows.
        option: the name of the forward's argument that takes the cache.
        inputs: the forward's other arguments.

    Raises:
        NotImplementedError: the model stores something that a slot has no room for.
    """
    cache = DynamicCache(config=model.config)
    before = _attributes(model)
    with torch.no_grad():
        model(torch.zeros((1, 1), dtype=torch.int32, device="meta"), **{option: cache}, **inputs)
    if _attributes(model) != before:
        raise NotImplementedError("it keeps a state in its modules, outside transformers' cache")
    specs = tuple(_layer_spec(layer, context, chunk, packing) for layer in cache.layers)
    if not any(spec.leaves for spec in specs):
        raise NotImplementedError("it keeps nothing in transformers' cache")
    return specs


def _attributes(model: PreTrainedModel) -> set[tuple[str, str, int]]:
    """Which tensors the modules hold besides parameters and buffers."""
    return {
        (module, name, id(value))
        for module, part in model.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, torch.Tensor)
    }


def _layer_spec(layer: Any, context: int, chunk: int, packing: HeadPacking) -> LayerSpec:
    window: int | None = getattr(layer, "sliding_window", None)
    positions = context if window is None else min(context, window + chunk)
    leaves: dict[str, torch.Tensor] = {}
    per_row = 1
    if isinstance(layer, CacheLayerMixin) and layer.is_initialized:
        assert layer.keys is not None
        assert layer.values is not None
        per_row = packing.heads_per_row(layer.keys.shape[1], max(layer.keys.shape[3], layer.values.shape[3]))
        for name, tensor in (("keys", layer.keys), ("values", layer.values)):
            leaves[name] = head_packing.packed(tensor, per_row)
        if isinstance(layer, DynamicIndexedLayer) and layer.is_indexer_initialized:
            assert layer.indexer_keys is not None
            leaves["indexer"] = layer.indexer_keys[:, None]
        leaves = {name: tensor.expand(-1, -1, positions, -1) for name, tensor in leaves.items()}
    if isinstance(layer, LinearAttentionCacheLayerMixin):
        states = {"conv": layer.conv_states, "recurrent": layer.recurrent_states}
        for kind, tensors in states.items():
            leaves |= {f"{kind}{i}": tensor for i, tensor in tensors.items() if tensor is not None}
    known = (DummyLayer, CacheLayerMixin, LinearAttentionLayer)
    custom = not type(layer).__module__.endswith("transformers.cache_utils")
    if custom or not isinstance(layer, known):
        raise NotImplementedError(f"cache layers of type {type(layer).__name__}")
    spec = LayerSpec(
        leaves=tuple(
            Leaf(name=name, shape=tuple(tensor.shape[1:]), dtype=jnp.dtype(jax_dtype(tensor.dtype)).name)
            for name, tensor in leaves.items()
        ),
        positions=positions,
        rollback=positions if window is None or positions == context else positions - window,
        window=window,
        heads_per_row=per_row,
    )
    return dataclasses.replace(spec, rollback=0) if spec.is_recurrent else spec


def cache_shape(specs: tuple[LayerSpec, ...], slots: int, mesh: Mesh | None = None) -> CacheShape:
    """The cache as shapes, dtypes and shardings: on a mesh, split by heads where the devices divide them evenly."""

    def shape_of(leaf: Leaf) -> jax.ShapeDtypeStruct:
        shape, sharding = (slots, *leaf.shape), None
        if mesh is not None:
            sharding = split(mesh, shape, 1) if leaf.name in WITH_POSITIONS else replicated(mesh)
        return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=sharding)

    return [{leaf.name: shape_of(leaf) for leaf in spec.leaves} for spec in specs]


def allocate(shape: CacheShape) -> KVCache:
    """An empty cache of this shape. Each array has its own buffer: a shared one can't be donated."""
    empty: KVCache = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding), shape)
    return empty


def fresh_states(cache: KVCache, position: jax.Array) -> KVCache:
    """One slot's cache, with all recurrent states reset to zero where a conversation begins (position 0).

    Keys and values need no reset: positions that this conversation has not written are masked.
    """
    return [
        {
            name: leaf if name in WITH_POSITIONS else jnp.where(position == 0, jnp.zeros_like(leaf), leaf)
            for name, leaf in layer.items()
        }
        for layer in cache
    ]


def prefix_of(specs: tuple[LayerSpec, ...], cache: KVCache, end: jax.Array, written: jax.Array) -> KVCache:
    """A slot's cache before position `end`: later positions are set to zero.

    They may hold NaN from a call whose output has not been read yet, and 0 * NaN is NaN. Recurrent states do not
    change.

    Args:
        specs: of its layers.
        cache: arrays [..., length, dim], or their first positions.
        end, written: int32 scalars; positions below `written` may have been written.
    """
    return [
        {
            name: only_before(leaf, end, spec.positions, written) if name in WITH_POSITIONS else leaf
            for name, leaf in layer.items()
        }
        for spec, layer in zip(specs, cache, strict=True)
    ]


def keep_states(running: jax.Array, new: KVCache, old: KVCache) -> KVCache:
    """One slot's cache after a step: a slot that does not run keeps its states. Writes of its keys were dropped."""
    return [
        {
            name: leaf if name in WITH_POSITIONS else jnp.where(running, leaf, old[i][name])
            for name, leaf in layer.items()
        }
        for i, layer in enumerate(new)
    ]
