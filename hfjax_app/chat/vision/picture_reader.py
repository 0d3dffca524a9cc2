"""Untrusted files become pictures for a chat model, in a few threads and within a bound of memory."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

from hfjax_app.chat.text.pictures import Shown
from hfjax_app.chat.vision.picture import Grid, VisionPicture
from hfjax_app.chat.vision.vision_tower import VisionTower
from hfjax_app.errors import Overloaded
from hfjax_app.limits import CHAT_PICTURES_AT_ONCE, CHAT_PICTURES_BYTES
from hfjax_app.pictures import as_seen, read_picture

RETRY_AFTER_S = 5


@dataclass(frozen=True, kw_only=True)
class ReadPictures:
    """The pictures of one request.

    Attributes:
        pictures: in the order of their files.
        release: gives their memory back; called when the request has ended. Called again it does nothing.
    """

    pictures: Sequence[VisionPicture]
    release: Callable[[], None]


class PictureReader:
    """Reads pictures for one model. Thread-safe.

    A prepared picture takes megabytes until its answer ends, and many requests may wait for a slot. The memory is
    counted from before a request's first picture is read until the request is refused, fails or ends, and says so.

    Args:
        vision: prepares them.
        most_bytes: of all pictures that are held.
    """

    def __init__(self, vision: VisionTower, most_bytes: int = CHAT_PICTURES_BYTES):
        self._vision, self._most = vision, most_bytes
        self._threads = ThreadPoolExecutor(CHAT_PICTURES_AT_ONCE, "pictures")
        self._counting, self._held = threading.Lock(), 0

    @property
    def held_bytes(self) -> int:
        """Of all pictures that wait to be read, wait for a slot, or are answered."""
        return self._held

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def grids(self, shown: Sequence[Shown]) -> list[Grid]:
        """The sizes that pictures get, by their files' headers, which are untrusted too and may take long.

        Raises:
            RequestRejected: a file is no picture, or too large.
        """
        found = self._threads.submit(lambda: [self._vision.grid_of(picture) for picture in shown])
        return await asyncio.wrap_future(found)

    async def read(self, shown: Sequence[Shown], grids: Sequence[Grid]) -> ReadPictures:
        """The pictures of a conversation in these sizes; the caller releases them in every case.

        Raises:
            RequestRejected: a file is no picture, or too large.
            Overloaded: the pictures of other requests take all of the memory.
        """
        room = self._room(sum(grid.picture_bytes for grid in grids))
        pictures: list[VisionPicture] = []
        reading: Future[VisionPicture] | None = None
        try:
            for picture, grid in zip(shown, grids, strict=True):
                reading = self._threads.submit(self._picture, picture.file, grid)
                pictures.append(await asyncio.wrap_future(reading))
        except BaseException:
            pictures.clear()  # the error's traceback keeps this frame
            if reading is None:
                room.close()
            else:  # at once, unless the client has left while a thread reads
                reading.add_done_callback(lambda _: room.close())
            raise
        return ReadPictures(pictures=pictures, release=room.close)

    def _room(self, size: int) -> ExitStack:
        """Memory of so many bytes, until the stack is closed."""
        with self._counting:
            if self._held + size > self._most:
                raise Overloaded("too many pictures wait for an answer already; try again later", RETRY_AFTER_S)
            self._held += size
        room = ExitStack()
        room.callback(self._give_back, size)
        return room

    def _give_back(self, size: int) -> None:
        with self._counting:
            self._held -= size

    def _picture(self, file: bytes, grid: Grid) -> VisionPicture:
        picture = self._vision.picture(as_seen(read_picture(file, "picture")), grid)
        _ = picture.id  # megabytes are hashed for it
        return picture
