"""Writes to one attention layer's cache, and which positions each index of the cache holds.

The token at position p of a layer with room for N positions is stored at index p % N. Does not know the layout of
slots: see kv_cache.py.
"""

import jax
import jax.numpy as jnp

NEVER = 2**30  # a position after every query: an index that was never written is masked like the future


def write(
    cache: jax.Array, new: jax.Array, position: jax.Array, valid: jax.Array, slot: jax.Array | None = None
) -> jax.Array:
    """Write the first `valid` of the new tokens along axis -2; padding is dropped.

    Args:
        cache: [heads, length, dim], or of all slots, [slots, heads, length, dim].
        new: [heads, tokens, dim].
        position, valid: int32 scalars.
        slot: int32 scalar, the slot to write; None: `cache` is one slot's.
    """
    if new.shape[-2] == 1 and slot is None:
        one: jax.Array = _write_one(cache, new, position, valid)
        return one
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
    return write(cache, jnp.concatenate([new, new], axis=-2), position, jnp.minimum(valid, 1))


def _update(*arguments: jax.Array) -> jax.Array:
    return _update_each(*(argument[None] for argument in arguments))[0]


def _update_each(cache: jax.Array, new: jax.Array, position: jax.Array, valid: jax.Array) -> jax.Array:
    """Write one token of each slot (leading axis of all arguments) by slice updates, one slot after the other.

    With a scatter, the TPU compiler changes the layout of all slots' caches at the start and at the end of each call.
    """

    def write(i: jax.Array, cache: jax.Array) -> jax.Array:
        at = (i, 0, position[i] % cache.shape[-2], 0)
        old = jax.lax.dynamic_slice(cache, at, (1, *new.shape[1:]))
        return jax.lax.dynamic_update_slice(cache, jnp.where(valid[i] > 0, new[i].astype(cache.dtype), old), at)

    out: jax.Array = jax.lax.fori_loop(0, cache.shape[0], write, cache)
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
