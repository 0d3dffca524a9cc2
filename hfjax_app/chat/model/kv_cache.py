"""The static key-value cache: what each layer stores for each slot.

A slot holds one conversation. An attention layer stores keys and values; a layer with room for N positions stores the
token at position p at index p % N. A full layer has room for the context. A sliding-window layer has room for window +
chunk positions and is a ring, so that a whole prefill chunk can be written before it is attended to. A recurrent layer
(state space, linear attention, short convolution) stores states whose size does not depend on the length.

Here are the layout, which is read off a model, the writing of tokens, and copies of parts for the programs of smaller
buckets (buckets.py). How a model's forward sees a slot is in slot_view.py.
"""

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

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

UNROLLED = 4  # slots that one turn of the loop over slots writes on a TPU, at most half of them
NEVER = 2**30  # a position after every query: an index that was never written is masked like the future


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


def take(cache: KVCache, length: int, slots: jax.Array) -> KVCache:
    """Copy the first positions of some slots. The copy is complete for positions below `length`, provided that no
    longer ring has wrapped.

    Args:
        cache: arrays [all slots, ...].
        length: how many positions of each leaf that has positions; other leaves are copied whole.
        slots: int32 [n], which slots.

    Returns:
        arrays [n, ...].
    """

    def part(name: str, leaf: jax.Array, slot: jax.Array) -> jax.Array:
        shape = list(leaf.shape[1:])
        if name in WITH_POSITIONS:
            shape[-2] = min(shape[-2], length)
        return jax.lax.dynamic_slice(leaf, (slot, *[0] * len(shape)), (1, *shape))[0]

    def one(slot: jax.Array) -> KVCache:
        return [{name: part(name, leaf, slot) for name, leaf in layer.items()} for layer in cache]

    taken: KVCache
    if slots.shape[0] == 1:
        taken = jax.tree.map(lambda leaf: leaf[None], one(slots[0]))
    else:
        # A vmap is a gather: on CPU it takes half the time of a loop, while the TPU compiler emits longer code for it.
        taken = jax.lax.platform_dependent(slots, cpu=jax.vmap(one), default=partial(jax.lax.map, one))
    return taken


class Written(NamedTuple):
    """Which positions of a part have changed since it was taken: at most `max_count` of them, from `position` (int32
    [n]) on, in slots that hold `context` tokens."""

    position: jax.Array
    max_count: int
    context: int


def put(cache: KVCache, part: KVCache, slots: jax.Array, written: Written | None = None) -> KVCache:
    """Write `part` (arrays [n, ...], as `take` returns them) back into the cache, in place where the cache is donated.

    Args:
        cache, part, slots: as for `take`.
        written: leaves whose index equals the position (cut leaves and leaves that do not wrap) are copied only there.
            None: anything may have changed.
    """

    def changed(name: str, leaf: jax.Array, new: jax.Array, index: int | jax.Array) -> jax.Array:
        new = jax.lax.dynamic_slice_in_dim(new, index, 1)
        first: int | jax.Array = 0
        if written is not None and name in WITH_POSITIONS:
            length = new.shape[-2]
            if written.max_count < length and (length < leaf.shape[-2] or length == written.context):
                first = jnp.clip(written.position[index], 0, length - written.max_count)
                new = jax.lax.dynamic_slice_in_dim(new, first, written.max_count, axis=new.ndim - 2)
        start: list[int | jax.Array] = [slots[index], *[0] * (leaf.ndim - 1)]
        if name in WITH_POSITIONS:
            start[-2] = first
        return jax.lax.dynamic_update_slice(leaf, new, start)

    def one(index: int | jax.Array, cache: KVCache) -> KVCache:
        return [
            {name: changed(name, leaf, new[name], index) for name, leaf in layer.items()}
            for layer, new in zip(cache, part, strict=True)
        ]

    if slots.shape[0] == 1:
        return one(0, cache)
    updated: KVCache = jax.lax.fori_loop(0, slots.shape[0], one, cache)
    return updated


def states_of(cache: KVCache, slot: jax.Array) -> KVCache:
    """All slots' cache, with one slot's recurrent states in place of all slots'."""
    return [
        {
            name: leaf if name in WITH_POSITIONS else jax.lax.dynamic_index_in_dim(leaf, slot, keepdims=False)
            for name, leaf in layer.items()
        }
        for layer in cache
    ]


def put_states(cache: KVCache, new: KVCache, slot: jax.Array) -> KVCache:
    """The new cache, shaped as `states_of` returns it, with the other slots' states as they are in `cache`."""
    return [
        {
            name: new[i][name] if name in WITH_POSITIONS else leaf.at[slot].set(new[i][name])
            for name, leaf in layer.items()
        }
        for i, layer in enumerate(cache)
    ]


def write(
    cache: jax.Array,
    new: jax.Array,
    position: jax.Array,
    valid: jax.Array,
    slot: jax.Array | None = None,
    *,
    wraps: bool = True,
) -> jax.Array:
    """Write the first `valid` of the new tokens along axis -2; padding is dropped.

    Args:
        cache: [heads, length, dim], or of all slots, [slots, heads, length, dim].
        new: [heads, tokens, dim], no more tokens than `length`.
        position, valid: int32 scalars.
        slot: int32 scalar, the slot to write; None: `cache` is one slot's.
        wraps: whether position + valid may exceed `length`, as in a ring.
    """
    if new.shape[-2] == 1 and slot is None:
        one: jax.Array = _write_one(cache, new, position, valid)
        return one
    update = partial(_update_rows, wraps=wraps)
    several: jax.Array
    if slot is None:
        several = jax.lax.platform_dependent(cache, new, position, valid, cpu=_scatter, default=update)
    else:
        several = jax.lax.platform_dependent(cache, new, position, valid, slot, cpu=_scatter, default=update)
    return several


def _scatter(
    cache: jax.Array, new: jax.Array, position: jax.Array, valid: jax.Array, slot: jax.Array | None = None
) -> jax.Array:
    """`write` by a scatter."""
    length = cache.shape[-2]
    offset = jnp.arange(new.shape[-2])
    index = jnp.where(offset < valid, (position + offset) % length, length)
    new = new.astype(cache.dtype)
    if slot is None:
        return cache.at[..., index, :].set(new, mode="drop")
    return cache.at[slot, :, index].set(new.swapaxes(0, 1), mode="drop")


@jax.custom_batching.custom_vmap
def _write_one(cache: jax.Array, new: jax.Array, position: jax.Array, valid: jax.Array) -> jax.Array:
    """`write` of one token for one slot, or under vmap for several."""
    out: jax.Array = jax.lax.platform_dependent(cache, new, position, valid, cpu=_scatter_two, default=_update)
    return out


@_write_one.def_vmap
def _write_one_each(slots: int, batched: list[bool], *arguments: jax.Array) -> tuple[jax.Array, bool]:
    whole = [
        argument if has_slots else jnp.broadcast_to(argument, (slots, *argument.shape))
        for argument, has_slots in zip(arguments, batched, strict=True)
    ]
    return jax.lax.platform_dependent(*whole, cpu=jax.vmap(_scatter_two), default=_update_each), True


def _scatter_two(cache: jax.Array, new: jax.Array, position: jax.Array, valid: jax.Array) -> jax.Array:
    """Write one token by a scatter of two; the second one is dropped.

    XLA turns a scatter of one into a slice update. On CPU it then computes the update twice, once for the cache and
    once for attention, and copies the whole layer each time. A scatter of two stays a scatter and works in place.
    """
    return _scatter(cache, jnp.concatenate([new, new], axis=-2), position, jnp.minimum(valid, 1))


def _update_rows(
    cache: jax.Array,
    new: jax.Array,
    position: jax.Array,
    valid: jax.Array,
    slot: jax.Array | None = None,
    *,
    wraps: bool,
) -> jax.Array:
    """`write` by slice updates of as many indices as there are tokens; indices of no real token keep their numbers.

    For a scatter of several tokens, the TPU's compiler writes a slot's whole array by a select.
    """
    if slot is None:
        return _update_rows(cache[None], new, position, valid, jnp.int32(0), wraps=wraps)[0]
    tokens, length = new.shape[-2], cache.shape[-2]
    new = new.astype(cache.dtype)
    index, first = jnp.arange(tokens), position % length

    def update(cache: jax.Array, start: jax.Array, token: jax.Array) -> jax.Array:
        """Write new[token], int32 [tokens], to the indices from `start` on, where token is a real one."""
        at = (slot, 0, start, 0)
        old = jax.lax.dynamic_slice(cache, at, (1, *new.shape))
        # The tokens of neighbouring indices are neighbours: a rotation and no gather.
        rows = jnp.roll(new, -token[0], axis=-2)
        real = ((token >= 0) & (token < valid))[:, None]
        return jax.lax.dynamic_update_slice(cache, jnp.where(real, rows, old), at)

    start = jnp.minimum(first, length - tokens)
    cache = update(cache, start, start + index - first)
    # The tokens that do not fit behind `first` continue at index 0.
    return update(cache, jnp.int32(0), length - first + index) if wraps else cache


def _update(*arguments: jax.Array) -> jax.Array:
    return _update_each(*(argument[None] for argument in arguments))[0]


def _update_each(cache: jax.Array, new: jax.Array, position: jax.Array, valid: jax.Array) -> jax.Array:
    """Write one token of each slot (leading axis of all arguments) by slice updates, one slot after the other.

    With a scatter, or without the loop, the TPU compiler changes the layout of all slots' caches at the start and at
    the end of each call. A turn that writes several slots reads what it needs by fewer instructions.
    """
    index = jnp.where(valid > 0, position % cache.shape[-2], -1)  # one number to read in each iteration and not two

    def write(i: jax.Array, cache: jax.Array) -> jax.Array:
        at = (i, 0, jnp.maximum(index[i], 0), 0)
        old = jax.lax.dynamic_slice(cache, at, (1, *new.shape[1:]))
        return jax.lax.dynamic_update_slice(cache, jnp.where(index[i] >= 0, new[i].astype(cache.dtype), old), at)

    slots = cache.shape[0]
    out: jax.Array = jax.lax.fori_loop(0, slots, write, cache, unroll=max(1, min(UNROLLED, slots // 2)))
    return out


def offsets(length: int, position: jax.Array, valid: jax.Array) -> jax.Array:
    """int32 [length]: the newest position below position + valid that each index can hold, minus the index.

    Padding is not written and does not count: in a ring that is no longer than the context, it would hide positions
    that are still inside the window.
    """
    index = jnp.arange(length)
    last = position + valid - 1
    held = last - (last - index) % length
    return jnp.where(held < 0, NEVER, held) - index


def only_before(leaf: jax.Array, end: jax.Array, length: int, written: jax.Array) -> jax.Array:
    """Zero out each index that holds no position below `end`.

    Args:
        leaf: [..., the first indices of the layer, dim].
        end: int32 scalar.
        length: of the layer's cache.
        written: int32 scalar, at least `end`. No position from `written` on has been written, so a ring still holds
            the last `length` positions below it.
    """
    last = end - 1
    held = last - (last - jnp.arange(leaf.shape[-2])) % length
    kept = held >= jnp.maximum(written - length, 0)
    return jnp.where(kept[:, None], leaf, jnp.zeros_like(leaf))
