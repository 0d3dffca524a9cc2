"""Writes to one attention layer's cache, and which positions each index of the cache holds.

The token at position p of a layer with room for N positions is stored at index p % N. Does not know the layout of
slots: see kv_cache.py.
"""

from functools import partial

import jax
import jax.numpy as jnp

UNROLLED = 4  # slots that one turn of the loop over slots writes on a TPU, at most half of them
NEVER = 2**30  # a position after every query: an index that was never written is masked like the future


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
