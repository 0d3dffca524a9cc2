"""The static key-value cache: what each layer stores for each slot, and the view of one slot that a forward updates.

A slot holds one conversation. An attention layer stores keys and values; a layer with room for N positions stores the
token at position p at index p % N. A full layer has room for the context. A sliding-window layer has room for window +
chunk positions and is a ring, so that a whole prefill chunk can be written before it is attended to. A recurrent layer
(state space, linear attention, short convolution) stores states whose size does not depend on the length. Everything is
computed from positions; nothing is counted in Python. Does not cover how tokens are written: see kv_cache_write.py.
"""

import dataclasses
from dataclasses import dataclass
from functools import partial
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
            Leaf(name=name, shape=tuple(tensor.shape[1:]), dtype=jnp.dtype(mappings.t2j_dtype(tensor.dtype)).name)
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


@dataclass(frozen=True, kw_only=True)
class Place:
    """The part of all slots' cache that a forward uses: the first `length` positions of slot `slot` (int32 scalar)."""

    slot: torch.Tensor
    length: int


class _Attention(StaticLayer):
    """One slot's attention layer, as transformers' models use it: `update` writes tokens and returns the whole slot.

    Derived from StaticLayer, because StaticSlidingWindowLayer counts in Python ints, which go stale under jit.

    Args:
        spec: of the layer.
        leaves: torch views of the slot's arrays, without the slot axis; with a place, of all slots' arrays.
        past: number of tokens written before, which is the position of the first new one.
        valid: int32 scalar, how many new tokens are real; writes of the others are dropped.
        place: which slot, and how many of its positions a query may attend to; None: `leaves` are one slot's.
    """

    def __init__(
        self,
        spec: LayerSpec,
        leaves: dict[str, torch.Tensor],
        past: SymbolicLength,
        valid: torch.Tensor,
        place: Place | None,
    ):
        self.leaves, self.place, self.heads_per_row = leaves, place, spec.heads_per_row
        self.wraps = spec.rollback < spec.positions
        self.keys, self.values = self._visible("keys"), self._visible("values")
        self.indexer_keys = self._visible("indexer")[0] if "indexer" in leaves else None
        self.indexer_position_ids = None
        self.past, self.cumulative_length, self.position = past, past.tensor, past.tensor
        self.valid = valid
        self.max_cache_len = self.keys.shape[2]
        self.is_sliding, self.sliding_window = spec.window is not None, spec.window
        self.is_initialized = self.is_indexer_initialized = True

    def _visible(self, name: str) -> torch.Tensor:
        """What a query may attend to, [1, heads, length, dim]."""
        leaf = self.leaves[name]
        if self.place is None:
            part = leaf[None]
        else:
            part = attention.first_positions(leaf, self.place.slot, min(self.place.length, leaf.shape[2]))
        return part if name == "indexer" else attention.unpacked(part, self.heads_per_row)

    def _put(self, name: str, new: torch.Tensor) -> torch.Tensor:
        """Write [heads, tokens, dim] into a leaf."""
        slot = None if self.place is None else self.place.slot
        new = new if name == "indexer" else head_packing.packed(new, self.heads_per_row)
        put = partial(write, wraps=self.wraps)
        self.leaves[name] = interop.call_jax(put, self.leaves[name], new, self.position, self.valid, slot)
        return self._visible(name)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        self.keys, self.values = self._put("keys", key_states[0]), self._put("values", value_states[0])
        return self.keys, self.values

    def update_indexer(self, indexer_key_states: torch.Tensor) -> torch.Tensor:
        self.indexer_keys = self._put("indexer", indexer_key_states)[0]
        return self.indexer_keys

    def get_mask_sizes(self, query_length: int) -> tuple[int, Any]:
        """The cache length, and the offset from an index of the cache to the position that it holds.

        transformers adds the offset to an arange of the length; in a ring it is a tensor [length]. An index that was
        never written gets a position that no query sees.
        """
        if not self.is_sliding:
            return self.max_cache_len, 0
        return self.max_cache_len, interop.call_jax(offsets, self.max_cache_len, self.position, self.valid)

    def get_seq_length(self) -> SymbolicLength:  # type: ignore[override]  # the models also take a traced length
        return self.past


class _Recurrent(LinearAttentionLayer):
    """One slot's recurrent layer, as transformers' models use it. It always has a previous state, zero at first."""

    def __init__(self, leaves: dict[str, torch.Tensor]):
        indices = {int(name.removeprefix(kind)) for kind in ("conv", "recurrent") for name in leaves if kind in name}
        LinearAttentionLayer.__init__(self, number_of_states=len(indices))
        self.record_past = True  # the code path that passes every update to the cache, for one token as for many
        for i in indices:
            conv, recurrent = leaves.get(f"conv{i}"), leaves.get(f"recurrent{i}")
            self.conv_states[i] = None if conv is None else conv[None]
            self.conv_kernel_size[i] = None if conv is None else conv.shape[-1]
            self.recurrent_states[i] = None if recurrent is None else recurrent[None]
            self.is_conv_states_initialized[i] = conv is not None
            self.is_recurrent_states_initialized[i] = recurrent is not None
            self.has_previous_state[i] = True

    def update_conv_state(
        self, conv_states: torch.Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **_: Any
    ) -> torch.Tensor:
        before, size = self.conv_states[state_idx], self.conv_kernel_size[state_idx]
        assert before is not None
        assert size is not None
        whole = torch.cat([before, conv_states], dim=-1)
        self.conv_states[state_idx] = whole[..., -size:]
        return whole

    def update_recurrent_state(self, recurrent_states: torch.Tensor, state_idx: int = 0, **_: Any) -> torch.Tensor:
        self.recurrent_states[state_idx] = recurrent_states
        return recurrent_states


# transformers' own hybrid layer inherits from the same classes, whose annotations contradict each other.
class _Hybrid(_Recurrent, _Attention, LinearAttentionAndFullAttentionLayer):  # type: ignore[misc, override]
    """Attention and a state in one layer. Because of the last base, Cache.is_linear counts it as attention."""

    def __init__(self, spec: LayerSpec, leaves: dict[str, torch.Tensor], *others: Any):
        _Recurrent.__init__(self, {name: leaf for name, leaf in leaves.items() if name not in WITH_POSITIONS})
        _Attention.__init__(self, spec, leaves, *others)


def slot_view(
    specs: tuple[LayerSpec, ...],
    leaves: list[dict[str, torch.Tensor]],
    past: SymbolicLength,
    valid: torch.Tensor,
    place: Place | None = None,
) -> Cache:
    """One slot's leaves (torch views) as the cache that a model's forward takes; read it back with `slot_leaves`.

    With a place, leaves with positions are those of all slots, and states are those of its slot.
    """
    layers: list[Any] = []
    for spec, layer in zip(specs, leaves, strict=True):
        if spec.is_attention and spec.is_recurrent:
            layers.append(_Hybrid(spec, layer, past, valid, place))
        elif spec.is_attention:
            layers.append(_Attention(spec, layer, past, valid, place))
        elif spec.is_recurrent:
            layers.append(_Recurrent(layer))
        else:
            layers.append(DummyLayer())
    return Cache(layers=layers)


def slot_leaves(specs: tuple[LayerSpec, ...], cache: Cache) -> list[dict[str, torch.Tensor]]:
    """The slot's leaves after a forward, with the names and dtypes of `specs`."""

    def read(layer: Any, name: str) -> torch.Tensor:
        leaf: torch.Tensor
        if name in WITH_POSITIONS:
            leaf = layer.leaves[name]
        else:
            kind = name.rstrip("0123456789")
            leaf = getattr(layer, f"{kind}_states")[int(name.removeprefix(kind))][0]
        return leaf

    return [
        {leaf.name: read(layer, leaf.name).to(mappings.j2t_dtype(jnp.dtype(leaf.dtype))) for leaf in spec.leaves}
        for spec, layer in zip(specs, cache.layers, strict=True)
    ]
