"""How long each model took to get ready at its last start, to tell how long this one will take."""

import contextlib
import json
import os
import tempfile
import threading
from pathlib import Path

_FILE = "start-times.json"
_writing = threading.Lock()


class StartTimes:
    """Seconds by model, in a file of the cache folder; where it can't be read or written, nothing is known.

    Args:
        folder: of compiled programs; None: none are kept.
    """

    def __init__(self, folder: Path | None):
        self._path = None if folder is None else folder / _FILE

    def last(self, model: str, *, compiled: bool) -> float | None:
        """The seconds of this model's last start in which programs were compiled, or were not."""
        seconds = self._read().get(_key(model, compiled))
        return seconds if isinstance(seconds, float) else None

    def keep(self, model: str, seconds: float, *, compiled: bool) -> None:
        """Record a start."""
        if self._path is None:
            return
        with _writing, contextlib.suppress(OSError):
            times = json.dumps(self._read() | {_key(model, compiled): round(seconds, 1)})
            handle, unfinished = tempfile.mkstemp(dir=self._path.parent)
            with os.fdopen(handle, "w") as file:
                file.write(times)
            os.replace(unfinished, self._path)

    def _read(self) -> dict[str, object]:
        try:
            times = json.loads(self._path.read_text()) if self._path is not None else {}
        except (OSError, ValueError):
            return {}
        return times if isinstance(times, dict) else {}


def _key(model: str, compiled: bool) -> str:
    return f"{model} {'compiled' if compiled else 'loaded'}"
