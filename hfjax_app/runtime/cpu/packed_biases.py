"""A model's vectors (biases, scales of norms) as one array, so that a call has fewer arguments.

Every argument of a call costs its caller two microseconds before the device begins, and more than half of a
convolutional network's weights are vectors. Inside a program each is a slice, which XLA reads where it lies; a slice of
matrices would be a copy. For programs that are called every few milliseconds on one CPU.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

# By name: the array that a vector is in, where it begins, and how long it is.
Vectors = Mapping[str, tuple[str, int, int]]


def joined(weights: Mapping[str, Any]) -> tuple[dict[str, Any], Vectors]:
    """The weights, on one device, or their shapes, with one array for all vectors of a dtype; and where each is."""
    groups: dict[str, list[Any]] = {}
    vectors: dict[str, tuple[str, int, int]] = {}
    for name, weight in weights.items():
        if weight.ndim == 1:
            group = f"{weight.dtype} vectors"  # no weight's name has a space
            members = groups.setdefault(group, [])
            vectors[name] = (group, sum(member.size for member in members), weight.size)
            members.append(weight)
    rest = {name: weight for name, weight in weights.items() if name not in vectors}
    return rest | {group: _end_to_end(members) for group, members in groups.items()}, vectors


def _end_to_end(members: list[Any]) -> Any:
    first = members[0]
    if isinstance(first, jax.ShapeDtypeStruct):
        return first.update(shape=(sum(member.size for member in members),))
    return jnp.concatenate(members)


def apart(weights: Mapping[str, jax.Array], vectors: Vectors) -> dict[str, jax.Array]:
    """What `joined` was given, inside a program."""
    groups = {group for group, _, _ in vectors.values()}
    rest = {name: weight for name, weight in weights.items() if name not in groups}
    slices = {
        name: jax.lax.slice(weights[group], (start,), (start + size,)) for name, (group, start, size) in vectors.items()
    }
    return rest | slices
