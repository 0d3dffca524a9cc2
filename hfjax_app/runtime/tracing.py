"""The reason why torch code could not be traced, in one line for the user. Does not trace: `module.py` does."""

import traceback
from pathlib import Path

import jax

from hfjax_app.errors import first_line

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
