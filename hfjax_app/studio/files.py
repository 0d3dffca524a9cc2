"""Files that the studio makes for its visitors, and that Gradio deletes in time."""

import threading
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from gradio.utils import get_upload_folder

BRIEFLY_S = 60  # a page on a slow line has fetched by then what it was shown


class MadeFiles(set[str]):
    """Their paths, to be among the sets that Gradio sweeps (`Blocks.temp_file_sets`).

    A component's own set is swept only as long as no event has updated the component. Gradio goes through the sets in a
    thread; files that are made meanwhile would end that, and with it all deleting. What of uploads is left that broke
    off, which Gradio forgets, is among them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._begun = int(time.time())  # files' times lag some milliseconds behind
        self._brief: dict[str, float] = {}  # when each was made, the oldest first
        self._changing = threading.Lock()

    def add_brief(self, path: str) -> None:
        """A file that nobody looks at for long, such as a preview; later ones delete those that are old.

        Files of the same content have the same path: one that is made again is young again.
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
        return chain(set.__iter__(self.copy()), self._broken_off())

    def _broken_off(self) -> Iterator[str]:
        """Parts of uploads, under the names of Python's temporary files, since this process began."""
        for path in Path(get_upload_folder()).glob("tmp*"):
            try:
                if path.is_file() and path.stat().st_mtime >= self._begun:
                    yield str(path)
            except FileNotFoundError:  # it has become a whole upload
                pass
