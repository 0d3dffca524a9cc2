"""The lock for loading and tracing models. One thread holds it, because torch and transformers change process-wide
state in the meantime (the default dtype, disabled initialisers).

A thread that only waits for the compiler releases the lock, so that one model is traced while another is compiled.
Does not cover compiling: `programs.py` does.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hfjax_app.runtime.fair_lock import FairLock

_lock = FairLock()
_thread = threading.local()


@contextmanager
def hold() -> Iterator[None]:
    """Hold the lock for the block, in the order of arrival; does nothing in a thread that holds it already."""
    if _is_held():
        yield
        return
    with _lock:
        _thread.holds = True
        try:
            yield
        finally:
            _thread.holds = False


@contextmanager
def release() -> Iterator[None]:
    """Release the lock for the block and acquire it again at the end; does nothing in a thread without the lock."""
    if not _is_held():
        yield
        return
    _thread.holds = False
    _lock.__exit__()
    try:
        yield
    finally:
        _lock.__enter__()
        _thread.holds = True


def _is_held() -> bool:
    return getattr(_thread, "holds", False)
