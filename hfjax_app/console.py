"""The terminal of our commands: any text of ours, and of third parties nothing that their user can't act on."""

import os
import sys
import warnings

# Public switches, read when each library is imported. TQDM_DISABLE silences bars that don't ask otherwise ("Loading
# weights"); downloads from the hub do, and keep theirs.
_QUIET = {
    "TRANSFORMERS_VERBOSITY": "error",
    "DIFFUSERS_VERBOSITY": "error",
    "HF_HUB_VERBOSITY": "error",
    "TQDM_DISABLE": "1",
    "JAX_LOGGING_LEVEL": "ERROR",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


def quiet() -> None:
    """Turn third parties' warnings, notes and loading bars off in this process. Call it before they are imported.

    What the environment already sets stays; `python -W default` brings Python's warnings back.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


def write_anything() -> None:
    """Let output that the terminal's encoding can't say be written by its numbers, and closed streams swallow it."""
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open as long as the process)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
