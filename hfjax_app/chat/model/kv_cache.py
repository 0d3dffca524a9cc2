"""The static cache: what each layer keeps of each slot's conversation, and the view of one slot that a forward updates.

A slot is the room of one conversation. An attention layer keeps keys and values; the token at position p of a layer
with R rows lives in row p % R. A full layer has as many rows as the context; a sliding-window layer has window + chunk
rows and is a ring, so that a whole prefill chunk can be written before it is attended to. A recurrent layer (state
space, linear attention, short convolution) keeps states whose size does not depend on the length. Everything follows
from positions; nothing is counted in Python.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.sharding import Mesh
from torchax import interop
from torchax.ops import mappings
from transformers import PreTrainedModel
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DummyLayer,
    DynamicCache,
    DynamicIndexedLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
    StaticLayer,
)

from hfjax_app.chat.model.kv_cache_write import offsets, only_before, write
from hfjax_app.chat.model.symbolic_length import SymbolicLength
from hfjax_app.runtime import attention, head_packing
from hfjax_app.runtime.head_packing import HeadPacking
from hfjax_app.runtime.mesh import replicated, split

# One layer: leaves by name. Leaves with rows: "keys" and "values" [slots, kv_heads, rows, dim], packed where heads lie
# side by side, "indexer" [slots, 1, rows, dim] (sparse attention). Leaves without: "conv0", "recurrent0", ...
# [slots, ...], states. Without the first axis for a single slot. A layer that keeps nothing is an empty dict.
LayerCache = dict[str, jax.Array]
KVCache = list[LayerCache]
WITH_ROWS = ("keys", "values", "indexer")


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """One array of a layer: its name, the shape of one slot, and its numpy dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """What one layer keeps.

    Args:
        leaves: its arrays; none for a layer that keeps nothing or reads another layer's.
        rows: tokens it has room for; the context where nothing depends on the length.
        window: tokens that a query sees, itself included; None: all of them.
        heads_per_row: of keys and values, how many heads lie side by side, see `runtime/head_packing.py`.
        rollback: how many of the newest tokens can be taken back, so that others are written in their place: all in a
            full layer; in a ring, as many as leave the whole window of the oldest; none where a state went over them.
    """

    leaves: tuple[Leaf, ...]
    rows: int
    rollback: int
    window: int | None = None
    heads_per_row: int = 1

    @property
    def is_recurrent(self) -> bool:
        """Whether it keeps a state that every token changes for good."""
        return any(leaf.name not in WITH_ROWS for leaf in self.leaves)

    @property
    def is_attention(self) -> bool:
        return any(leaf.name in WITH_ROWS for leaf in self.leaves)


def rollback(specs: tuple[LayerSpec, ...]) -> int:
    """How many of the newest tokens can be taken back in every layer."""
    return min(spec.rollback for spec in specs)


def layer_specs(
    model: PreTrainedModel, context: int, chunk: int, packing: HeadPacking, option: str, inputs: dict[str, Any]
) -> tuple[LayerSpec, ...]:
    """The cache layout of any causal model, read off one token's forward on the meta device.

    transformers' own DynamicCache decides which layers slide or keep states, and what the model puts into it decides
    the shapes, so no architecture's config names are needed.

    Args:
        model: a model on the meta device.
        context: tokens a slot holds.
        chunk: the largest number of tokens written at once.
        packing: where heads lie side by side.
        option: the name of the forward's argument that takes the cache.
        inputs: the forward's other arguments.

    Raises:
        NotImplementedError: the model keeps something that a slot has no room for.
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
    window = getattr(layer, "sliding_window", None)
    rows = context if window is None else min(context, window + chunk)
    leaves, per_row = {}, 1
    if isinstance(layer, CacheLayerMixin) and layer.is_initialized:
        leaves = {"keys": layer.keys, "values": layer.values}
        per_row = packing.heads_per_row(layer.keys.shape[1], max(leaf.shape[3] for leaf in leaves.values()))
        leaves = {name: head_packing.packed(tensor, per_row) for name, tensor in leaves.items()}
        if isinstance(layer, DynamicIndexedLayer) and layer.is_indexer_initialized:
            leaves["indexer"] = layer.indexer_keys[:, None]
        leaves = {name: tensor.expand(-1, -1, rows, -1) for name, tensor in leaves.items()}
    if isinstance(layer, LinearAttentionCacheLayerMixin):
        states = {"conv": layer.conv_states, "recurrent": layer.recurrent_states}
        for kind, tensors in states.items():
            leaves |= {f"{kind}{i}": tensor for i, tensor in tensors.items() if tensor is not None}
    known = (DummyLayer, CacheLayerMixin, LinearAttentionLayer)
    own = not type(layer).__module__.endswith("transformers.cache_utils")
    if own or not isinstance(layer, known):
        raise NotImplementedError(f"cache layers of type {type(layer).__name__}")
    spec = LayerSpec(
        leaves=tuple(
            Leaf(name=name, shape=tuple(tensor.shape[1:]), dtype=jnp.dtype(mappings.t2j_dtype(tensor.dtype)).name)
            for name, tensor in leaves.items()
        ),
        rows=rows,
        rollback=rows if rows == context else rows - window,
        window=window,
        heads_per_row=per_row,
    )
    return dataclasses.replace(spec, rollback=0) if spec.is_recurrent else spec


def cache_shape(specs: tuple[LayerSpec, ...], slots: int, mesh: Mesh | None = None) -> KVCache:
    """The cache as shapes, dtypes and shardings: on a mesh, split by heads where the devices divide them evenly."""

    def shape_of(leaf: Leaf) -> jax.ShapeDtypeStruct:
        shape, sharding = (slots, *leaf.shape), None
        if mesh is not None:
            sharding = split(mesh, shape, 1) if leaf.name in WITH_ROWS else replicated(mesh)
        return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=sharding)

    return [{leaf.name: shape_of(leaf) for leaf in spec.leaves} for spec in specs]


def allocate(shape: KVCache) -> KVCache:
    """An empty cache of this shape. Each array has a buffer of its own: a shared one could not be donated."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding), shape)


def fresh_states(cache: KVCache, position: jax.Array) -> KVCache:
    """One slot's cache with every recurrent state zero where a conversation begins (position 0).

    Keys and values need no such thing: rows that this conversation has not written are masked.
    """
    return [
        {
            name: leaf if name in WITH_ROWS else jnp.where(position == 0, jnp.zeros_like(leaf), leaf)
            for name, leaf in layer.items()
        }
        for layer in cache
    ]


def beginning(specs: tuple[LayerSpec, ...], cache: KVCache, end: jax.Array, written: jax.Array) -> KVCache:
    """A slot's cache as it was before position `end`: zero in rows that hold later ones.

    Those may be NaN of which nobody has heard yet, and 0 * NaN is NaN. Recurrent states stay as they are.

    Args:
        specs: of its layers.
        cache: arrays [..., rows, dim], or some of the first rows.
        end, written: int32 scalars; positions below `written` may have been written.
    """
    return [
        {
            name: only_before(leaf, end, spec.rows, written) if name in WITH_ROWS else leaf
            for name, leaf in layer.items()
        }
        for spec, layer in zip(specs, cache, strict=True)
    ]


def keep_states(running: jax.Array, new: KVCache, old: KVCache) -> KVCache:
    """One slot's cache after a step: a slot that does not run keeps its states (its keys' writes were dropped)."""
    return [
        {name: leaf if name in WITH_ROWS else jnp.where(running, leaf, old[i][name]) for name, leaf in layer.items()}
        for i, layer in enumerate(new)
    ]


@dataclass(frozen=True, kw_only=True)
class Place:
    """The part of all slots' cache that a forward works on: the first `rows` rows of slot `slot` (int32 scalar)."""

    slot: torch.Tensor
    rows: int


class _Attention(StaticLayer):
    """An attention layer of one slot as transformers' models see it: `update` writes rows and returns the whole slot.

    Derived from StaticLayer; StaticSlidingWindowLayer counts in Python ints, which go stale under jit.

    Args:
        spec: of the layer.
        leaves: torch views of the slot's arrays, without the slot axis; with a place, of all slots' arrays.
        length: tokens written before, which is where the first new one goes.
        valid: int32 scalar, how many new tokens are real; writes of the others are dropped.
        place: which of all slots, and how many of its rows a query may look at.
    """

    def __init__(
        self,
        spec: LayerSpec,
        leaves: dict[str, torch.Tensor],
        length: SymbolicLength,
        valid: torch.Tensor,
        place: Place | None,
    ):
        self.leaves, self.place, self.heads_per_row = leaves, place, spec.heads_per_row
        self.keys, self.values = self._shown("keys"), self._shown("values")
        self.indexer_keys = self._shown("indexer")[0] if "indexer" in leaves else None
        self.indexer_position_ids = None
        self.length, self.cumulative_length, self.position = length, length.tensor, length.tensor
        self.valid = valid
        self.max_cache_len = self.keys.shape[2]
        self.is_sliding, self.sliding_window = spec.window is not None, spec.window
        self.is_initialized = self.is_indexer_initialized = True

    def _shown(self, name: str) -> torch.Tensor:
        """What a query may look at, [1, heads, rows, dim]."""
        leaf = self.leaves[name]
        if self.place is None:
            rows = leaf[None]
        else:
            rows = attention.first_rows(leaf, self.place.slot, min(self.place.rows, leaf.shape[2]))
        return rows if name == "indexer" else attention.unpacked(rows, self.heads_per_row)

    def _put(self, name: str, new: torch.Tensor) -> torch.Tensor:
        """Write [heads, tokens, dim] into a leaf."""
        slot = None if self.place is None else self.place.slot
        new = new if name == "indexer" else head_packing.packed(new, self.heads_per_row)
        self.leaves[name] = interop.call_jax(write, self.leaves[name], new, self.position, self.valid, slot)
        return self._shown(name)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        self.keys, self.values = self._put("keys", key_states[0]), self._put("values", value_states[0])
        return self.keys, self.values

    def update_indexer(self, indexer_key_states: torch.Tensor) -> torch.Tensor:
        self.indexer_keys = self._put("indexer", indexer_key_states)[0]
        return self.indexer_keys

    def get_mask_sizes(self, query_length: int) -> tuple[int, Any]:
        """Rows, and what to add to a row's index to get the position it holds.

        transformers adds the second to an arange of the first; in a ring it is a tensor [rows]. A row that was never
        written holds a position that no query sees.
        """
        if not self.is_sliding:
            return self.max_cache_len, 0
        return self.max_cache_len, interop.call_jax(offsets, self.max_cache_len, self.position, self.valid)

    def get_seq_length(self) -> SymbolicLength:
        return self.length


class _Recurrent(LinearAttentionLayer):
    """A recurrent layer of one slot as transformers' models see it. It always has a previous state: zero at first."""

    def __init__(self, leaves: dict[str, torch.Tensor]):
        indices = {int(name.removeprefix(kind)) for kind in ("conv", "recurrent") for name in leaves if kind in name}
        LinearAttentionLayer.__init__(self, number_of_states=len(indices))
        self.record_past = True  # the path that hands every update to the cache, for one token as for many
        for i in indices:
            conv, recurrent = leaves.get(f"conv{i}"), leaves.get(f"recurrent{i}")
            self.conv_states[i] = None if conv is None else conv[None]
            self.conv_kernel_size[i] = None if conv is None else conv.shape[-1]
            self.recurrent_states[i] = None if recurrent is None else recurrent[None]
            self.is_conv_states_initialized[i] = conv is not None
            self.is_recurrent_states_initialized[i] = recurrent is not None
            self.has_previous_state[i] = True

    def update_conv_state(self, conv_states: torch.Tensor, state_idx: int = 0, **_: Any) -> torch.Tensor:
        whole = torch.cat([self.conv_states[state_idx], conv_states], dim=-1)
        self.conv_states[state_idx] = whole[..., -self.conv_kernel_size[state_idx] :]
        return whole

    def update_recurrent_state(self, recurrent_states: torch.Tensor, state_idx: int = 0, **_: Any) -> torch.Tensor:
        self.recurrent_states[state_idx] = recurrent_states
        return recurrent_states


class _Hybrid(_Recurrent, _Attention, LinearAttentionAndFullAttentionLayer):
    """Both at once. The last base makes Cache.is_linear call it attention."""

    def __init__(self, spec: LayerSpec, leaves: dict[str, torch.Tensor], *others: Any):
        _Recurrent.__init__(self, {name: leaf for name, leaf in leaves.items() if name not in WITH_ROWS})
        _Attention.__init__(self, spec, leaves, *others)


def slot_view(
    specs: tuple[LayerSpec, ...],
    leaves: list[dict[str, torch.Tensor]],
    length: SymbolicLength,
    valid: torch.Tensor,
    place: Place | None = None,
) -> Cache:
    """One slot's leaves (torch views) as the cache that a model's forward takes; read it back with `slot_leaves`.

    With a place, leaves with rows are those of all slots, and those without are its slot's.
    """
    layers: list[Any] = []
    for spec, layer in zip(specs, leaves, strict=True):
        if spec.is_attention and spec.is_recurrent:
            layers.append(_Hybrid(spec, layer, length, valid, place))
        elif spec.is_attention:
            layers.append(_Attention(spec, layer, length, valid, place))
        elif spec.is_recurrent:
            layers.append(_Recurrent(layer))
        else:
            layers.append(DummyLayer())
    return Cache(layers=layers)


def slot_leaves(specs: tuple[LayerSpec, ...], cache: Cache) -> list[dict[str, torch.Tensor]]:
    """The slot's leaves after a forward, with the names and dtypes of `specs`."""

    def read(layer: Any, name: str) -> torch.Tensor:
        if name in WITH_ROWS:
            return layer.leaves[name]
        kind = name.rstrip("0123456789")
        return getattr(layer, f"{kind}_states")[int(name.removeprefix(kind))][0]

    return [
        {leaf.name: read(layer, leaf.name).to(mappings.j2t_dtype(jnp.dtype(leaf.dtype))) for leaf in spec.leaves}
        for spec, layer in zip(specs, cache.layers, strict=True)
    ]
