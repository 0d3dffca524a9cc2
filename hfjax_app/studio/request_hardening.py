"""Request hardening: closes what Gradio leaves open to clients.

- Files are read only from the upload folder.
- Nothing is downloaded from other hosts.
- Values of a page are not stored for links to it, which this studio does not offer.
- Each kind of event has a waiting line of its own, so that a full line blocks no other kind.
"""

from typing import Any

import gradio as gr
from gradio import processing_utils
from gradio.queueing import Queue
from gradio.state_holder import SessionState

from hfjax_app.limits import EVENTS_WAITING


def harden(page: gr.Blocks) -> None:
    """Apply all of it. Call it after all events have been added. The first two changes apply to the whole process."""
    processing_utils.async_ssrf_protected_download = _refuse  # Gradio reads a file of any size into memory
    # Gradio keeps the last inputs of a thousand sessions, 16 MB each
    SessionState._update_value_in_config = _forget  # type: ignore[method-assign,assignment]
    # Gradio checks the path of a file only on pages that were launched; this page is mounted.
    page.has_launched = True
    page._queue.__class__ = _LinePerKind


async def _refuse(url: str, cache_dir: str) -> str:
    raise gr.Error("files are uploaded, and not fetched from elsewhere", print_exception=False)


def _forget(state: SessionState, key: int, value: Any) -> None:
    """Replaces the method that stores a component's value for links to a page."""


class _LinePerKind(Queue):
    """Rejects an event when EVENTS_WAITING events of its own kind (`concurrency_id`) are waiting.

    Gradio's own queue counts the events of all kinds together.
    """

    async def push(self, body: Any, request: Any, username: str | None) -> Any:
        if body.fn_index in self.blocks.fns:
            line = self.event_queue_per_concurrency_id.get(self.blocks.fns[body.fn_index].concurrency_id)
            if line is not None and len(line.queue) >= EVENTS_WAITING:
                return False, f"Too many wait already: {EVENTS_WAITING}. Try again later.", "queue_full"
        return await super().push(body, request, username)
