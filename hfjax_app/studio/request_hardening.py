"""Request hardening: closes what Gradio leaves open to clients.

- Files are read only from the upload folder, nothing is downloaded from other hosts, and nothing is kept for links to a
  page's values (`runtime/seams/gradio.py`).
- A value that a component can't read is refused. Gradio writes it to the log, with what a visitor typed.
- The queue is fair between clients, bounded, and can't be stopped by a request (`event_queue.py`).

Which of Gradio's routes exist, and what a request may contain, is in `hfjax_app/server/gradio_routes.py` and
`gradio_events.py`.
"""

import logging
from typing import Any

import gradio as gr

from hfjax_app.errors import where
from hfjax_app.runtime.seams.gradio import close_doors, queue_of
from hfjax_app.service.admission import Admission
from hfjax_app.service.usage import Usage
from hfjax_app.studio.event_queue import FairQueue, LogEvent

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
    """Apply all of it, after all events have been added.

    Args:
        page: with all its events.
        admission, usage, log_event: see `FairQueue.take_over`.
    """
    close_doors(page)
    queue = queue_of(page)
    queue.__class__ = FairQueue
    assert isinstance(queue, FairQueue)
    queue.take_over(admission, usage, log_event)
    return queue
