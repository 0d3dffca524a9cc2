"""Rows of one attention layer's cache: how tokens are written into them, and which positions they hold.

The token at position p of a layer with R rows lives in row p % R. Does not know slots' layout: kv_cache.py does.
"""

import jax
import jax.numpy as jnp

NEVER = 2**30  # a position after every query: rows that were never written are masked like the future


def write(
    cache: jax.Array, new: jax.Array, position: jax.Array, valid: jax.Array, slot: jax.Array | None = None
) -> jax.Array:
    """Put the first `valid` of the new tokens into their rows (axis -2); out-of-range rows are dropped.

    Args:
        cache: [heads, rows, dim], or of all slots, [slots, heads, rows, dim].
        new: [heads, tokens, dim].
        position, valid: int32 scalars.
        slot: int32 scalar, which of all slots.
    """
    if new.shape[-2] == 1 and slot is None:
        return _write_one(cache, new, position, valid)
    rows = cache.shape[-2]
    index = jnp.arange(new.shape[-2])
    row = jnp.where(index < valid, (position + index) % rows, rows)
    new = new.astype(cache.dtype)
    if slot is None:
        return cache.at[..., row, :].set(new, mode="drop")
    return cache.at[slot, :, row].set(new.swapaxes(0, 1), mode="drop")


@jax.custom_batching.custom_vmap
def _write_one(cache: jax.Array, new: jax.Array, position: jax.Array, valid: jax.Array) -> jax.Array:
    """`write` of one token for one slot, or under vmap for several."""
    return jax.lax.platform_dependent(cache, new, position, valid, cpu=_scatter_two, default=_update)


@_write_one.def_vmap
def _write_one_each(slots: int, batched: list[bool], *arguments: jax.Array) -> tuple[jax.Array, bool]:
    whole = [
        argument if has_slots else jnp.broadcast_to(argument, (slots, *argument.shape))
        for argument, has_slots in zip(arguments, batched, strict=True)
    ]
    return jax.lax.platform_dependent(*whole, cpu=jax.vmap(_scatter_two), default=_update_each), True


def _scatter_two(cache: jax.Array, new: jax.Array, position: jax.Array, valid: jax.Array) -> jax.Array:
    """One token by a scatter of two, the second of which is dropped.

    XLA makes a slice update of a scatter of one. On CPU it then computes that twice, once for the cache and once for
    attention, and copies all rows of the layer for each. A scatter of two stays what it is and works in place.
    """
    return write(cache, jnp.concatenate([new, new], axis=-2), position, jnp.minimum(valid, 1))


def _update(*arguments: jax.Array) -> jax.Array:
    return _update_each(*(argument[None] for argument in arguments))[0]


def _update_each(cache: jax.Array, new: jax.Array, position: jax.Array, valid: jax.Array) -> jax.Array:
    """One token of each slot (leading axis of all arguments) by slice updates, one slot after the other.

    For a scatter, a TPU's compiler rearranges all slots' rows when a call begins, and back again when it ends.
    """

    def write(i: jax.Array, cache: jax.Array) -> jax.Array:
        at = (i, 0, position[i] % cache.shape[-2], 0)
        old = jax.lax.dynamic_slice(cache, at, (1, *new.shape[1:]))
        return jax.lax.dynamic_update_slice(cache, jnp.where(valid[i] > 0, new[i].astype(cache.dtype), old), at)

    return jax.lax.fori_loop(0, cache.shape[0], write, cache)


def offsets(rows: int, position: jax.Array, valid: jax.Array) -> jax.Array:
    """int32 [rows]: the newest position below position + valid that each row can hold, less the row's index.

    Padding is not written and does not count: where the ring is no longer than the context, it would hide rows that a
    window still shows.
    """
    row = jnp.arange(rows)
    last = position + valid - 1
    held = last - (last - row) % rows
    return jnp.where(held < 0, NEVER, held) - row


def only_before(leaf: jax.Array, end: jax.Array, rows: int, written: jax.Array) -> jax.Array:
    """Zero where a row holds no position below `end`.

    Args:
        leaf: [..., some of the layer's first rows, dim].
        end: int32 scalar.
        rows: of the layer.
        written: int32 scalar, not less than `end`; no position from it on has been written, so that in a ring what lies
            a whole ring before is still there.
    """
    last = end - 1
    held = last - (last - jnp.arange(leaf.shape[-2])) % rows
    kept = held >= jnp.maximum(written - rows, 0)
    return jnp.where(kept[:, None], leaf, jnp.zeros_like(leaf))
