"""The progress of uploads, for the pages that wait for them.

Takes the place of Gradio's, which keeps something for each id that a client has ever named, and lets any number of
streams look for an upload's progress twenty times a second.
"""

import asyncio
from collections import deque

from gradio.route_utils import FileUploadProgress, FileUploadProgressTracker

from hfjax_app.limits import UPLOADS_WATCHED


class UploadProgress(FileUploadProgress):
    """Of the UPLOADS_WATCHED newest uploads, each for one page."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[str, asyncio.Event] = {}
        self._read: set[str] = set()

    def track(self, upload_id: str) -> None:
        if upload_id in self._statuses:
            return
        self._statuses[upload_id] = FileUploadProgressTracker(deque(), False)
        if (signal := self._waiting.get(upload_id)) is not None:
            signal.set()
        while len(self._statuses) > UPLOADS_WATCHED:
            self.stop_tracking(next(iter(self._statuses)))

    async def is_tracked(self, upload_id: str) -> bool:
        """Wait for an upload to begin; Gradio gives up after some seconds.

        Raises:
            TimeoutError: another page waits for it already.
        """
        if upload_id in self._read or upload_id in self._waiting:
            raise TimeoutError
        if upload_id not in self._statuses:
            signal = self._waiting[upload_id] = asyncio.Event()
            try:
                await signal.wait()
            finally:
                del self._waiting[upload_id]
        self._read.add(upload_id)
        return True

    def stop_tracking(self, upload_id: str) -> None:
        super().stop_tracking(upload_id)
        self._read.discard(upload_id)
