"""Request hardening: closes what Gradio leaves open to clients.

- Files are read only from the upload folder.
- Nothing is downloaded from other hosts.
- The progress of uploads is kept for a while only, and for the page that waits for it.
- Values of a page are not stored for links to it, which this studio does not offer.
- A value that a component can't read is refused. Gradio writes it to the log, with what a visitor typed.
- The queue is fair between clients, bounded, and can't be stopped by a request (`event_queue.py`).

Which of Gradio's routes exist, and what a request may contain, is in `hfjax_app/server/gradio_routes.py` and
`gradio_events.py`.
"""

import logging
from contextlib import nullcontext
from typing import Any

import gradio as gr
from gradio import processing_utils, routes, utils
from gradio.state_holder import SessionState

from hfjax_app.errors import where
from hfjax_app.service.admission import Admission
from hfjax_app.service.usage import Usage
from hfjax_app.studio.event_queue import FairQueue, LogEvent
from hfjax_app.studio.page_states import light
from hfjax_app.studio.upload_progress import UploadProgress

_log = logging.getLogger(__name__)


class Page(gr.Blocks):
    """Blocks that refuse what their components can't read."""

    async def preprocess_data(self, *arguments: Any, **options: Any) -> list[Any]:
        try:
            values: list[Any] = await super().preprocess_data(*arguments, **options)
        except gr.Error:
            raise
        except Exception as error:
            _log.info("a value that a component can't read: %s", where(error))
            raise gr.Error("a value has the wrong form for its component", print_exception=False) from error
        return values


def harden(page: gr.Blocks, admission: Admission, usage: Usage, log_event: LogEvent) -> FairQueue:
    """Apply all of it, after all events have been added. The first five changes apply to the whole process.

    Args:
        page: with all its events.
        admission, usage, log_event: see `FairQueue.take_over`.
    """
    processing_utils.async_ssrf_protected_download = _refuse  # Gradio reads a file of any size into memory
    # Gradio keeps the last inputs of a thousand sessions, 16 MB each
    SessionState._update_value_in_config = _forget  # type: ignore[method-assign,assignment]
    SessionState.__init__ = light  # type: ignore[method-assign,assignment]
    # Gradio looks for matplotlib on disk before and after each item of a stream: a third of a busy event loop's time
    utils.MatplotlibBackendMananger = nullcontext  # type: ignore[misc,assignment]
    routes.file_upload_statuses = UploadProgress()
    # Gradio checks the path of a file only on pages that were launched; this page is mounted.
    page.has_launched = True
    queue = page._queue
    queue.__class__ = FairQueue
    assert isinstance(queue, FairQueue)
    queue.take_over(admission, usage, log_event)
    return queue


async def _refuse(url: str, cache_dir: str) -> str:
    raise gr.Error("files are uploaded, and not fetched from elsewhere", print_exception=False)


def _forget(state: SessionState, key: int, value: Any) -> None:
    """Replaces the method that stores a component's value for links to a page."""
