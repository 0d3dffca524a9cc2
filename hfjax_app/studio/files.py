"""Files that the studio makes for its visitors and that Gradio deletes after some time."""

import threading
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from hfjax_app.runtime.seams.gradio import get_upload_folder

BRIEFLY_S = 60  # enough for a page on a slow line to fetch a preview


class MadeFiles(set[str]):
    """The paths of these files, as one of the sets that Gradio sweeps (`Blocks.temp_file_sets`).

    A component's own set does not do: Gradio sweeps it only until the first event updates the component. A plain set
    does not do either: Gradio iterates over it in a thread, and a file that is added meanwhile would raise an error,
    after which Gradio deletes nothing any more. Iterating over this set also yields the remains of interrupted uploads,
    which Gradio does not delete.
    """

    def __init__(self) -> None:
        super().__init__()
        self._started = int(time.time() - 1)  # a file's time may lag some milliseconds behind
        self._brief: dict[str, float] = {}  # path -> when the file was made, the oldest first
        self._changing = threading.Lock()

    def add_brief(self, path: str) -> None:
        """Add a file that is needed for BRIEFLY_S only, such as a preview. Each call deletes the older ones.

        Files of the same content have the same path, so a file that is made again counts as new.
        """
        now = time.monotonic()
        with self._changing:
            self._brief.pop(path, None)
            self._brief[path] = now
            self.add(path)
            while (oldest := next(iter(self._brief))) != path and now - self._brief[oldest] > BRIEFLY_S:
                del self._brief[oldest]
                self.discard(oldest)
                Path(oldest).unlink(missing_ok=True)

    def __iter__(self) -> Iterator[str]:
        return chain(set.__iter__(self.copy()), self._interrupted_uploads())

    def _interrupted_uploads(self) -> Iterator[str]:
        """Partial files since this process started. They have the names of Python's temporary files."""
        for path in Path(get_upload_folder()).glob("tmp*"):
            try:
                if path.is_file() and path.stat().st_mtime >= self._started:
                    yield str(path)
            except FileNotFoundError:  # the upload is complete, and its file was renamed
                pass
