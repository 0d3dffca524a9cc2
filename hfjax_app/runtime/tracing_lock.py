"""Whose turn it is to load and trace a model: one thread at a time, because torch and transformers change process-wide
state meanwhile (the default dtype, initialisers that are taken out).

Who has nothing to do but wait for the compiler lets the next one go ahead, so that one model is traced while another is
compiled.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hfjax_app.runtime.fair_lock import FairLock

_turns = FairLock()
_mine = threading.local()


@contextmanager
def turn() -> Iterator[None]:
    """Wait for the turn, in the order of arrival, and hold it; does nothing in a thread that has it already."""
    if _held():
        yield
        return
    with _turns:
        _mine.held = True
        try:
            yield
        finally:
            _mine.held = False


@contextmanager
def others_first() -> Iterator[None]:
    """Give the turn away for the block, and wait for it again at the end; does nothing in a thread that has none."""
    if not _held():
        yield
        return
    _mine.held = False
    _turns.__exit__()
    try:
        yield
    finally:
        _turns.__enter__()
        _mine.held = True


def _held() -> bool:
    return getattr(_mine, "held", False)
