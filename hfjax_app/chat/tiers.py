"""Tiers: programs for 1, 2, 4, ... slots and for 256, 1024, 4096, ... rows of the cache; the smallest that fits runs.

A program of a tier works on a copy of the rows it needs and puts them back in place when it ends, so what a decode step
reads follows from who is being served, not from how large the cache is. The largest tier works on the cache itself.
"""

from collections.abc import Sequence

import jax

from hfjax_app.chat.kv_cache import WITH_ROWS, KVCache

SMALLEST_ROWS = 256


def row_tiers(context: int) -> tuple[int, ...]:
    """256, 1024, 4096, ... rows up to half the context, then the context; one tier where it is 512 or less.

    A cache that small is read so fast that a second set of programs costs more at the start than it ever saves.
    """
    if context <= 2 * SMALLEST_ROWS:
        return (context,)
    tiers, rows = [], SMALLEST_ROWS
    while rows <= context // 2:
        tiers.append(rows)
        rows *= 4
    return (*tiers, context)


def slot_tiers(slots: int, wanted: Sequence[int] | None = None) -> tuple[int, ...]:
    """1, 2, 4, ... slots, or those wanted, and all of them."""
    if wanted is None:
        wanted = [2**i for i in range(slots.bit_length())]
    return (*sorted({count for count in wanted if 1 <= count < slots}), slots)


def covering(tiers: tuple[int, ...], needed: int) -> int:
    """The smallest tier of at least `needed`."""
    return next(tier for tier in tiers if tier >= needed)


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
    return jax.lax.map(one, slots)


def put(cache: KVCache, part: KVCache, slots: jax.Array) -> KVCache:
    """The cache with `part` (arrays [n, ...], as `take` gives them) back in its place, in place where it is donated."""

    def one(index: int | jax.Array, cache: KVCache) -> KVCache:
        def rows(leaf: jax.Array, new: jax.Array) -> jax.Array:
            new = jax.lax.dynamic_slice_in_dim(new, index, 1)
            return jax.lax.dynamic_update_slice(leaf, new, (slots[index], *[0] * (leaf.ndim - 1)))

        return jax.tree.map(rows, cache, part)

    if slots.shape[0] == 1:
        return one(0, cache)
    return jax.lax.fori_loop(0, slots.shape[0], one, cache)
