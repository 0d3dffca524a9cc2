"""The lock for loading and tracing models. One thread holds it, because torch and transformers change process-wide
state in the meantime (the default dtype, disabled initialisers).

A thread that only waits for the compiler releases the lock, so that one model is traced while another is compiled.
Does not cover compiling: `programs.py` does.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hfjax_app.line import FairLine, Place

_line = FairLine()
_thread = threading.local()  # its `place` in the line while it holds the lock


@contextmanager
def hold() -> Iterator[None]:
    """Hold the lock for the block, in the order of arrival; does nothing in a thread that holds it already."""
    if _held() is not None:
        yield
        return
    _take()
    try:
        yield
    finally:
        _give_back()


@contextmanager
def release() -> Iterator[None]:
    """Release the lock for the block and acquire it again at the end; does nothing in a thread without the lock."""
    if _held() is None:
        yield
        return
    _give_back()
    try:
        yield
    finally:
        _take()


def _held() -> Place | None:
    return getattr(_thread, "place", None)


def _take() -> None:
    place = _line.join()
    place.until_served()
    _thread.place = place


def _give_back() -> None:
    place, _thread.place = _thread.place, None
    place.leave()
