"""The lock for loading and tracing models, and the reason why one could not be traced, in one line for the user.

One thread holds the lock, because torch and transformers change process-wide state in the meantime (the default dtype,
disabled initialisers). A thread that only waits for the compiler releases it, so that one model is traced while another
is compiled.
"""

import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

from hfjax_app.errors import first_line
from hfjax_app.line import FairLine, Place

# Errors that jax raises where Python code needs the value of a traced array.
DATA_DEPENDENT = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
_OF_VALUES = ("item()", "nonzero", "no data", "meta tensor", "Tracer(")  # in the messages of other errors
# Prefixes of the files with architecture code in transformers and diffusers.
_ARCHITECTURES = ("modeling_", "unet_", "transformer_", "autoencoder_", "pipeline_")


def why_untraceable(error: Exception) -> str:
    """One line with the reason why a trace failed, and the failing line of the architecture's code."""
    frames = [(Path(frame.filename).name, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    places = [f"{name}, line {line}" for name, line in frames if name.startswith(_ARCHITECTURES)]
    place = f" ({places[-1]})" if places else ""
    message = first_line(error)
    if isinstance(error, DATA_DEPENDENT) or any(words in message for words in _OF_VALUES):
        return f"its code depends on the values of tensors{place}"
    return f"{message}{place}"


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
