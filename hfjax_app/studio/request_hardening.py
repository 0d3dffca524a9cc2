"""Request hardening: Gradio does less with what requests bring than by itself, where that would serve strangers.

Files are taken only from where uploads go, nothing is fetched from elsewhere, nothing is kept for links to a page's
values (which this studio has none of), and each kind of event has a waiting line of its own, which can be full alone.
"""

from typing import Any

import gradio as gr
from gradio import processing_utils
from gradio.queueing import Queue
from gradio.state_holder import SessionState

from hfjax_app.limits import EVENTS_WAITING


def harden(page: gr.Blocks) -> None:
    """Apply all of it; the first three to every page of this process. Call it when all events have been added."""
    processing_utils.async_ssrf_protected_download = _refuse  # whole into memory, whatever its size
    SessionState._update_value_in_config = _forget  # the last inputs of a thousand sessions, 16 MB each
    # Gradio asks whether a file may be taken only on pages that were launched; ours is mounted.
    page.has_launched = True
    page._queue.__class__ = _LineForEachKind


async def _refuse(url: str, cache_dir: str) -> str:
    raise gr.Error("files are uploaded, and not fetched from elsewhere", print_exception=False)


def _forget(state: SessionState, key: int, value: Any) -> None:
    """In the place of what keeps a component's value for links to a page."""


class _LineForEachKind(Queue):
    """Refuses an event when those of its own kind (`concurrency_id`) are too many, and not when others are."""

    async def push(self, body: Any, request: Any, username: str | None) -> Any:
        if body.fn_index in self.blocks.fns:
            line = self.event_queue_per_concurrency_id.get(self.blocks.fns[body.fn_index].concurrency_id)
            if line is not None and len(line.queue) >= EVENTS_WAITING:
                return False, f"Too many wait already: {EVENTS_WAITING}. Try again later.", "queue_full"
        return await super().push(body, request, username)
