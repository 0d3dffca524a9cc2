"""The 1-D weights of a program (biases, scales of norms) packed into one argument.

Each argument of a call costs its caller two microseconds before the device starts, and more than half of a
convolutional network's weights are 1-D. Inside the program each is a slice, which XLA reads in place; a slice of a
matrix would be a copy. For programs that are called every few milliseconds. `transforms.py` decides where
it pays.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp


class PackedArguments:
    """Weights with one array for all 1-D weights of a dtype.

    Args:
        weights: on one device, or their shapes.
        packs: whether to pack.

    Attributes:
        weights: the weights that the program takes.
    """

    def __init__(self, weights: Mapping[str, Any], *, packs: bool):
        groups: dict[str, list[Any]] = {}
        # By name: the packed array of a 1-D weight, its start, and its length.
        self._packed: dict[str, tuple[str, int, int]] = {}
        for name, weight in weights.items():
            if packs and weight.ndim == 1:
                group = f"packed {weight.dtype}"  # no weight's name has a space
                members = groups.setdefault(group, [])
                self._packed[name] = (group, sum(member.size for member in members), weight.size)
                members.append(weight)
        rest = {name: weight for name, weight in weights.items() if name not in self._packed}
        self.weights: dict[str, Any] = rest | {group: _joined(members) for group, members in groups.items()}

    def unpack(self, weights: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """The weights by their original names; called inside a program.

        Args:
            weights: as `self.weights`.
        """
        groups = {group for group, _, _ in self._packed.values()}
        rest = {name: weight for name, weight in weights.items() if name not in groups}
        return rest | {
            name: jax.lax.slice(weights[group], (start,), (start + size,))
            for name, (group, start, size) in self._packed.items()
        }


def _joined(members: list[Any]) -> Any:
    first = members[0]
    if isinstance(first, jax.ShapeDtypeStruct):
        return first.update(shape=(sum(member.size for member in members),))
    return jnp.concatenate(members)
