"""How many bytes clients may upload: files stay on the disk until Gradio sweeps them."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.types import Message, Receive

from hfjax_app.errors import Overloaded
from hfjax_app.limits import HTTP_MAX_BODY, RETRY_AFTER_S, UPLOAD_LEAST, UPLOADS_BYTES, UPLOADS_TOTAL_BYTES


class Uploads:
    """Counts the bytes of uploads. For one event loop.

    Args:
        kept_s: how long files stay.
        now: a clock in seconds.
    """

    def __init__(self, kept_s: float, now: Callable[[], float] = time.monotonic):
        self._kept_s, self._now = kept_s, now
        self._kept: deque[tuple[float, str, int]] = deque()  # when, whose, and bytes; the oldest first
        self._of_clients: Counter[str] = Counter()  # kept bytes, and those that are coming

    @contextmanager
    def counted(self, client: str, declared: bytes, receive: Receive) -> Iterator[Receive]:
        """Count an upload: while the block runs its declared length, afterwards the bytes that came.

        Args:
            client: its id.
            declared: the Content-Length; without one it counts as the longest that is read.
            receive: of the request.

        Returns:
            What reads the request.

        Raises:
            Overloaded: the client, or all of them, have uploaded so much that is still kept.
        """
        self._forget_old()
        size = int(declared) if declared.isdigit() and len(declared) < 20 else HTTP_MAX_BODY
        size = max(size, UPLOAD_LEAST)
        for used, most, whose, owners in (
            (self._of_clients[client], UPLOADS_BYTES, "your", {client}),
            (self._of_clients.total(), UPLOADS_TOTAL_BYTES, "all visitors'", self._of_clients.keys()),
        ):
            if used + size > most:
                oldest = next((at for at, owner, _ in self._kept if owner in owners), None)
                left = RETRY_AFTER_S if oldest is None else int(oldest + self._kept_s - self._now()) + 1
                raise Overloaded(f"{whose} uploads have {most >> 20:,} MiB already: try again later", left)
        self._add(client, size)
        received = 0

        async def counting() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        try:
            yield counting
        finally:
            kept = max(received, UPLOAD_LEAST) if received else 0
            self._add(client, kept - size)
            if kept:
                self._kept.append((self._now(), client, kept))

    def _add(self, client: str, size: int) -> None:
        self._of_clients[client] += size
        if not self._of_clients[client]:
            del self._of_clients[client]

    def _forget_old(self) -> None:
        while self._kept and self._now() - self._kept[0][0] > self._kept_s:
            _, client, size = self._kept.popleft()
            self._add(client, -size)
