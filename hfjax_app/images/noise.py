"""Noise from a picture's seed: the same on every device, alone or among other pictures.

The first noise is NumPy's (PCG64), made on the host. The noise that stochastic samplers add at each step is made on the
device by jax's counter-based Threefry, which also gives the same bits everywhere.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np


def first_noise(seed: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The noise of the first step, and the noise that samples an encoded picture's latents: float32, unit normal."""
    generator = np.random.Generator(np.random.PCG64(seed))
    return generator.standard_normal(shape, np.float32), generator.standard_normal(shape, np.float32)


def between(first: np.ndarray, other: np.ndarray, share: float) -> np.ndarray:
    """Noise on the way from one to another, along the arc between them, so that it stays unit normal: float32.

    Args:
        first: unit normal.
        other: of the same shape.
        share: 0 for `first` itself, 1 for `other` itself.
    """
    cosine = float(np.vdot(first, other)) / float(np.linalg.norm(first) * np.linalg.norm(other))
    angle = math.acos(max(-1.0, min(1.0, cosine)))
    if angle == 0:
        return first
    parts = (math.sin((1 - share) * angle) / math.sin(angle), math.sin(share * angle) / math.sin(angle))
    return np.float32(parts[0]) * first + np.float32(parts[1]) * other


def key_of(seed: int) -> np.ndarray:
    """The seed as a Threefry key, uint32 [2]."""
    return np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)


def step_noise(key: jax.Array, step: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The fresh unit normal noise of one step, float32; `step` counts from 0. Is traced."""
    folded = jax.random.fold_in(jax.random.wrap_key_data(key, impl="threefry2x32"), step)
    return jax.random.normal(folded, shape, jnp.float32)
