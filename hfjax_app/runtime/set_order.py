"""One order of sets in every process, so that a model gives the same program each time and the compile cache has it.

Python orders a set of strings by hashes that differ from process to process. Code such as `for layer_type in
set(config.layer_types)` (transformers' Gemma 3 and others) is traced in that order, so every other start compiled all
programs again. Does not cover set displays ({a, b}) and results of set operators.
"""

import sys
from collections.abc import Iterator
from typing import Any


class OrderedSet(set):
    """A set that iterates in the order of its elements' representations."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__(), key=repr))


def install(*classes: type) -> None:
    """Replace `set` by OrderedSet in the modules that define these classes, but for torch's own modules."""
    for name in {cls.__module__ for cls in classes}:
        if not name.startswith("torch."):
            vars(sys.modules[name])["set"] = OrderedSet
