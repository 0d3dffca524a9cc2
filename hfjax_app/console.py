"""The terminal output of the commands: any text can be written, and messages of libraries are silenced."""

import os
import sys
import warnings

# Public switches, which each library reads at its import. TQDM_DISABLE hides bars that do not set `disable` ("Loading
# weights"); downloads from the hub set it, and stay visible.
_QUIET = {
    "TRANSFORMERS_VERBOSITY": "error",
    "DIFFUSERS_VERBOSITY": "error",
    "HF_HUB_VERBOSITY": "error",
    "TQDM_DISABLE": "1",
    "JAX_LOGGING_LEVEL": "ERROR",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


def quiet() -> None:
    """Silence warnings, notes and progress bars of libraries in this process. Call it before their import.

    Variables that the environment sets are kept; `python -W default` shows Python's warnings.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


def write_anything() -> None:
    """Escape characters that the terminal's encoding lacks, and discard output to closed streams."""
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open as long as the process)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
