"""Tiers: programs for 1, 2, 4, ... slots, for 256, 1024, 4096, ... rows of the cache, for short and long pieces of a
prompt; the smallest that fits runs.

A program of a bucket works on a copy of the rows it needs and puts them back in place when it ends. What a decode step
reads follows from who is being served, not from how large the cache is. The largest bucket works on the cache itself.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from hfjax_app.chat.model.kv_cache import WITH_ROWS, KVCache

SMALLEST_ROWS = 256


def length_buckets(context: int) -> tuple[int, ...]:
    """256, 1024, 4096, ... rows up to half the context, then the context; one bucket where it is 512 or less.

    A cache that small is read so fast that a second set of programs costs more at the start than it ever saves.
    """
    if context <= 2 * SMALLEST_ROWS:
        return (context,)
    buckets, rows = [], SMALLEST_ROWS
    while rows <= context // 2:
        buckets.append(rows)
        rows *= 4
    return (*buckets, context)


def prefill_buckets(chunk: int, context: int) -> tuple[int, ...]:
    """Prompt tokens of a prefill call: a chunk, and four times as many where the context has several buckets of rows.

    More rows use a processor better: on a CPU, 512 tokens in two calls take 60 % of the time that they take in eight.
    """
    return (chunk,) if len(length_buckets(context)) == 1 else (chunk, 4 * chunk)


def slot_buckets(slots: int, wanted: Sequence[int] | None = None) -> tuple[int, ...]:
    """1, 2, 4, ... slots, or those wanted, and all of them."""
    if wanted is None:
        wanted = [2**i for i in range(slots.bit_length())]
    return (*sorted({count for count in wanted if 1 <= count < slots}), slots)


def smallest_covering(buckets: tuple[int, ...], needed: int) -> int:
    """The smallest bucket of at least `needed`."""
    return next(bucket for bucket in buckets if bucket >= needed)


def take(cache: KVCache, rows: int, slots: jax.Array) -> KVCache:
    """A copy of some slots' first rows: right for positions below `rows`, where no longer ring has turned yet.

    Args:
        cache: arrays [all slots, ...].
        rows: how many rows of each leaf that has them; leaves without rows come whole.
        slots: int32 [n], which slots.

    Returns:
        arrays [n, ...].
    """

    def part(name: str, leaf: jax.Array, slot: jax.Array) -> jax.Array:
        shape = list(leaf.shape[1:])
        if name in WITH_ROWS:
            shape[-2] = min(shape[-2], rows)
        return jax.lax.dynamic_slice(leaf, (slot, *[0] * len(shape)), (1, *shape))[0]

    def one(slot: jax.Array) -> KVCache:
        return [{name: part(name, leaf, slot) for name, leaf in layer.items()} for layer in cache]

    if slots.shape[0] == 1:
        return jax.tree.map(lambda leaf: leaf[None], one(slots[0]))
    # All at once is a gather, for which a CPU takes half the time of a loop, and a TPU's compiler writes longer ones.
    return jax.lax.platform_dependent(slots, cpu=jax.vmap(one), default=partial(jax.lax.map, one))


class Written(NamedTuple):
    """Which rows of a part have changed since it was taken: those of positions from `position` (int32 [n]) on, `count`
    of them at most, in slots that hold `context` tokens."""

    position: jax.Array
    count: int
    context: int


def put(cache: KVCache, part: KVCache, slots: jax.Array, written: Written | None = None) -> KVCache:
    """The cache with `part` (arrays [n, ...], as `take` gives them) back in its place, in place where it is donated.

    Args:
        cache, part, slots: as for `take`.
        written: of leaves that position and row agree in, because they were cut or don't turn, only these rows are
            copied. None: anything may have changed.
    """

    def changed(name: str, leaf: jax.Array, new: jax.Array, index: int | jax.Array) -> jax.Array:
        new = jax.lax.dynamic_slice_in_dim(new, index, 1)
        start = [slots[index], *[0] * (leaf.ndim - 1)]
        if written is not None and name in WITH_ROWS:
            rows = new.shape[-2]
            if written.count < rows and (rows < leaf.shape[-2] or rows == written.context):
                start[-2] = jnp.clip(written.position[index], 0, rows - written.count)
                new = jax.lax.dynamic_slice_in_dim(new, start[-2], written.count, axis=new.ndim - 2)
        return jax.lax.dynamic_update_slice(leaf, new, start)

    def one(index: int | jax.Array, cache: KVCache) -> KVCache:
        return [
            {name: changed(name, leaf, new[name], index) for name, leaf in layer.items()}
            for layer, new in zip(cache, part, strict=True)
        ]

    if slots.shape[0] == 1:
        return one(0, cache)
    return jax.lax.fori_loop(0, slots.shape[0], one, cache)


def states_of(cache: KVCache, slot: jax.Array) -> KVCache:
    """All slots' cache, of which the leaves without rows are cut down to one slot's."""
    return [
        {
            name: leaf if name in WITH_ROWS else jax.lax.dynamic_index_in_dim(leaf, slot, keepdims=False)
            for name, leaf in layer.items()
        }
        for layer in cache
    ]


def put_states(cache: KVCache, new: KVCache, slot: jax.Array) -> KVCache:
    """The new cache, as `states_of` gives it, with the other slots' states as they were in the old one."""
    return [
        {name: new[i][name] if name in WITH_ROWS else leaf.at[slot].set(new[i][name]) for name, leaf in layer.items()}
        for i, layer in enumerate(cache)
    ]
