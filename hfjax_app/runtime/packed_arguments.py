"""The small arrays of a program's weights (biases, scales of norms) as one argument.

Every argument of a call costs its caller two microseconds before the device begins, and more than half of a
convolutional network's weights are vectors. Inside a program each is a slice, which XLA reads where it lies; a slice of
matrices would be a copy. For programs that are called every few milliseconds.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp


class PackedArguments:
    """Weights with one array for all vectors of a dtype.

    Args:
        weights: on one device, or their shapes.
        packs: whether to do it at all.

    Attributes:
        weights: what the program takes.
    """

    def __init__(self, weights: Mapping[str, Any], *, packs: bool):
        groups: dict[str, list[Any]] = {}
        # By name: the array that a vector is in, where it begins, and how long it is.
        self._vectors: dict[str, tuple[str, int, int]] = {}
        for name, weight in weights.items():
            if packs and weight.ndim == 1:
                group = f"{weight.dtype} vectors"  # no weight's name has a space
                members = groups.setdefault(group, [])
                self._vectors[name] = (group, sum(member.size for member in members), weight.size)
                members.append(weight)
        rest = {name: weight for name, weight in weights.items() if name not in self._vectors}
        self.weights: dict[str, Any] = rest | {group: _end_to_end(members) for group, members in groups.items()}

    def unpack(self, weights: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """The weights by their own names, inside a program.

        Args:
            weights: as `self.weights`.
        """
        groups = {group for group, _, _ in self._vectors.values()}
        rest = {name: weight for name, weight in weights.items() if name not in groups}
        return rest | {
            name: jax.lax.slice(weights[group], (start,), (start + size,))
            for name, (group, start, size) in self._vectors.items()
        }


def _end_to_end(members: list[Any]) -> Any:
    first = members[0]
    if isinstance(first, jax.ShapeDtypeStruct):
        return first.update(shape=(sum(member.size for member in members),))
    return jnp.concatenate(members)
