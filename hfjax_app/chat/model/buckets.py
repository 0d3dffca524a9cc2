"""Buckets: programs for 1, 2, 4, ... slots, for cache lengths of 256, 1024, 4096, ... positions, and for short and long
chunks of a prompt. Each call runs the smallest bucket that covers it.

A bucket's program works on a copy of the positions that it needs, and writes them back in place when it ends. So what a
decode step reads depends on the requests being served, not on the size of the cache. The largest bucket works on the
cache itself. Does not choose buckets for a request: model_runner.py does.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from hfjax_app.chat.model.kv_cache import WITH_POSITIONS, KVCache

SMALLEST_LENGTH = 256


def length_buckets(context: int) -> tuple[int, ...]:
    """256, 1024, 4096, ... positions up to half the context, then the context; one bucket for a context of 512 or less.

    Reading a cache that small is so fast that a second set of programs costs more at the start than it ever saves.
    """
    if context <= 2 * SMALLEST_LENGTH:
        return (context,)
    buckets, length = [], SMALLEST_LENGTH
    while length <= context // 2:
        buckets.append(length)
        length *= 4
    return (*buckets, context)


def prefill_buckets(chunk: int, context: int) -> tuple[int, ...]:
    """Prompt tokens of a prefill call: a chunk, and four times as many where the context has several length buckets.

    Longer chunks use a processor better: on a CPU, 512 tokens in two calls take 60 % of the time of eight calls.
    """
    return (chunk,) if len(length_buckets(context)) == 1 else (chunk, 4 * chunk)


def slot_buckets(slots: int, wanted: Sequence[int] | None = None) -> tuple[int, ...]:
    """1, 2, 4, ... slots, or the given numbers, and all slots."""
    if wanted is None:
        wanted = [2**i for i in range(slots.bit_length())]
    return (*sorted({count for count in wanted if 1 <= count < slots}), slots)


def smallest_covering(buckets: tuple[int, ...], needed: int) -> int:
    """The smallest bucket of at least `needed`."""
    return next(bucket for bucket in buckets if bucket >= needed)


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
