"""How much memory a model that serves holds on each device. Does not cover what its programs take while they run."""

from collections.abc import Iterable
from dataclasses import dataclass

import jax


@dataclass(frozen=True, kw_only=True)
class HeldMemory:
    """Bytes on each device.

    Attributes:
        weights: with buffers.
        cache: of keys and values, or states; 0 for models without one.
    """

    weights: int
    cache: int = 0


def bytes_of(trees: Iterable[object]) -> int:
    """Bytes of all arrays in these pytrees, each of which a device holds whole."""
    return sum(leaf.nbytes for tree in trees for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array))
