"""Untrusted files become pictures for a chat model, in a few threads and within a bound of memory."""

import asyncio
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


class _Share:
    """Room for one picture, for as long as something refers to it: the call that reads it, then the picture."""


class PictureReader:
    """Reads pictures for one model. For one event loop.

    A prepared picture takes megabytes until its answer ends, and many requests may wait for a slot.

    Args:
        vision: prepares them.
        most_bytes: of all pictures that are held.
    """

    def __init__(self, vision: VisionTower, most_bytes: int = CHAT_PICTURES_BYTES):
        self._vision, self._most = vision, most_bytes
        self._threads = ThreadPoolExecutor(CHAT_PICTURES_AT_ONCE, "pictures")
        self._shares = weakref.WeakSet[_Share]()

    @property
    def held_bytes(self) -> int:
        """Of all pictures that wait to be read, wait for a slot, or are answered."""
        return len(self._shares) * self._vision.picture_bytes

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def read(self, files: Sequence[bytes]) -> list[Picture]:
        """The pictures of files, in their order.

        Raises:
            RequestRejected: a file is no picture, or too large.
            Overloaded: the pictures of other requests take all of the memory.
        """
        if self.held_bytes + len(files) * self._vision.picture_bytes > self._most:
            raise Overloaded("too many pictures wait for an answer already; try again later", RETRY_AFTER_S)
        shares, loop = [_Share() for _ in files], asyncio.get_running_loop()
        self._shares.update(shares)
        return [
            await loop.run_in_executor(self._threads, self._picture, file, share)
            for file, share in zip(files, shares, strict=True)
        ]

    def _picture(self, file: bytes, share: _Share) -> Picture:
        picture = self._vision.picture(as_seen(read_picture(file, "picture")), share)
        _ = picture.id  # megabytes are hashed for it
        return picture
