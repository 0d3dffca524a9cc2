"""Untrusted files become pictures for a chat model, in a few threads and within a bound of memory."""

import asyncio
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from hfjax_app.chat.vision.picture import Picture
from hfjax_app.chat.vision.vision_tower import VisionTower
from hfjax_app.errors import Overloaded
from hfjax_app.limits import CHAT_PICTURES_AT_ONCE, CHAT_PICTURES_BYTES
from hfjax_app.pictures.colours import as_seen
from hfjax_app.pictures.uploads import read_picture

RETRY_AFTER_S = 5


class PictureReader:
    """Reads pictures for one model.

    A prepared picture takes megabytes until its answer ends, and many requests may wait for a slot.

    Args:
        vision: prepares them.
        most_bytes: of all pictures that are held.
    """

    def __init__(self, vision: VisionTower, most_bytes: int = CHAT_PICTURES_BYTES):
        self._vision, self._most = vision, most_bytes
        self._threads = ThreadPoolExecutor(CHAT_PICTURES_AT_ONCE, "pictures")
        self._held, self._lock = 0, threading.Lock()

    @property
    def held_bytes(self) -> int:
        """Of all pictures that are being read, wait, or are answered."""
        return self._held

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def read(self, files: Sequence[bytes]) -> list[Picture]:
        """The pictures of files, in their order.

        Raises:
            RequestRejected: a file is no picture, or too large.
            Overloaded: the pictures of other requests take all of the memory.
        """
        each, loop = self._vision.picture_bytes, asyncio.get_running_loop()
        if self._held + len(files) * each > self._most:
            raise Overloaded("too many pictures wait for an answer already; try again later", RETRY_AFTER_S)
        return [await loop.run_in_executor(self._threads, self._picture, file, each) for file in files]

    def _picture(self, file: bytes, size: int) -> Picture:
        self._change(size)
        try:
            picture = self._vision.picture(as_seen(read_picture(file, "picture")))
            _ = picture.id  # megabytes are hashed for it
        except BaseException:
            self._change(-size)
            raise
        weakref.finalize(picture, self._change, -size)
        return picture

    def _change(self, size: int) -> None:
        with self._lock:
            self._held += size
