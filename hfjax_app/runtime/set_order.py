"""One order of sets in every process, so that a model traced twice is the same program and the compile cache has it.

Python orders a set of strings by hashes that differ from process to process. Code such as `for layer_type in
set(config.layer_types)` (transformers' Gemma 3 and others) writes its operations down in that order, so that every
other start compiled all its programs again. Does not cover sets written as {a, b} and what operators make of sets.
"""

import sys
from collections.abc import Iterator
from typing import Any


class OrderedSet(set):
    """A set that is iterated in the order of its elements' representations."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__(), key=repr))


def install(*classes: type) -> None:
    """Let `set` mean OrderedSet in the modules where these classes are defined; torch's own are left alone."""
    for name in {cls.__module__ for cls in classes}:
        if not name.startswith("torch."):
            vars(sys.modules[name])["set"] = OrderedSet
