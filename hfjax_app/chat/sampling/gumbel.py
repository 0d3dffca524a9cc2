"""Gumbel noise for sampling: a function of a slot's own seed and position, independent of the other slots.

The bits come from Threefry-2x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), with the seed
as key and (position, token) as counter. No key is derived, and a number takes one pass of elementwise operations, which
XLA fuses into one loop. jax's own primitive gives the same bits (a test compares), but on CPU it loops over whole
arrays, which takes two to three times as long, and four times as long to compile. Does not sample: sampler.py does.
"""

import jax
import jax.numpy as jnp

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def gumbel(key: jax.Array, position: jax.Array, vocabulary: int) -> jax.Array:
    """Standard Gumbel noise for every token.

    Args:
        key: uint32 [slots, 2], the seeds.
        position: int32 [slots].
        vocabulary: number of token ids.

    Returns:
        float32 [slots, vocabulary].
    """
    places, tokens = position.astype(jnp.uint32)[:, None], jnp.arange(vocabulary, dtype=jnp.uint32)
    bits, _ = threefry(key[:, :1], key[:, 1:], places, tokens)
    # jax's uniform numbers have 23 bits, so tokens of less than about 1e-7 are never drawn, unless two numbers are used
    # for each. These have 32 bits near zero, where they matter.
    uniform = jnp.minimum((bits.astype(jnp.float32) + 0.5) * 2.0**-32, 1 - 2.0**-24)
    return -jnp.log(-jnp.log1p(-uniform))


def threefry(key0: jax.Array, key1: jax.Array, count0: jax.Array, count1: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Threefry-2x32 of 20 rounds: uint32 arrays that broadcast to one shape -> two of that shape."""
    keys = (key0, key1, key0 ^ key1 ^ _PARITY)
    x, y = count0 + key0, count1 + key1
    for injection in range(1, 6):
        for rotation in _ROTATIONS[(injection - 1) % 2]:
            x = x + y
            y = (y << rotation | y >> (32 - rotation)) ^ x
        x, y = x + keys[injection % 3], y + keys[(injection + 1) % 3] + jnp.uint32(injection)
    return x, y
