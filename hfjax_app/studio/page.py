"""The page: top bar and tabs; and what Gradio leaves open to clients, closed.

- Files are read only from the upload folder, nothing is downloaded from other hosts, and nothing is kept for links to a
  page's values (`runtime/seams/gradio.py`).
- A value that a component can't read is refused. Gradio writes it to the log, with what a visitor typed.
- The queue is fair between clients, bounded, and can't be stopped by a request (`event_queue.py`).

Which of Gradio's routes exist, and what a request may contain, is in `server/gradio_routes.py` and `gradio_events.py`.
"""

import logging
from typing import Any

import gradio as gr

from hfjax_app.api.endpoints import add_endpoints
from hfjax_app.errors import where
from hfjax_app.limits import EVENTS_AT_ONCE
from hfjax_app.runtime.seams.gradio import close_doors, poll_every, queue_of
from hfjax_app.service.admission import Admission
from hfjax_app.service.service import Service
from hfjax_app.service.usage import Usage
from hfjax_app.studio.chat_tab import ChatTab
from hfjax_app.studio.engine_tab import EngineTab
from hfjax_app.studio.event_queue import FairQueue, LogEvent
from hfjax_app.studio.files import MadeFiles
from hfjax_app.studio.icons import mark
from hfjax_app.studio.images_tab import ImagesTab
from hfjax_app.studio.sentiment_tab import SentimentTab
from hfjax_app.studio.status import StatusLine
from hfjax_app.studio.tab import Shared, Tab

TITLE = "hfjax studio"
TABS: tuple[type[Tab], ...] = (ChatTab, SentimentTab, ImagesTab, EngineTab)  # in their order on the page
FILES_KEPT_S = 24 * 3600
QUEUE_POLL_S = 0.01  # Gradio's default of a millisecond takes a fourteenth of a core

_HALF_MOON = (
    '<svg class="i" viewBox="0 0 24 24" aria-hidden="true"><path d="M12 4a8 8 0 1 0 0 16z" fill="currentColor"/>'
    '<circle cx="12" cy="12" r="8"/></svg>'
)
_HEADER = f"""<header>
<a class="skip" href="#" data-skip>Skip to the page</a>
<h1 class="brand">{mark()}<span>hfjax <i>studio</i></span></h1>
<a class="api" href="docs" data-api title="How programs use this: every endpoint, with examples">API</a>
<button class="icon" type="button" data-theme-switch aria-label="Light or dark" title="Light or dark">{_HALF_MOON}
</button>
</header>"""


def build_studio(service: Service, log_event: LogEvent) -> tuple[gr.Blocks, FairQueue]:
    """The studio for a service, whose models may still be warming up.

    Args:
        service: answers.
        log_event: see `FairQueue.take_over`.

    Returns:
        Blocks, whose theme is added when they are served (`hfjax_app/server/app.py`), and their queue.
    """
    page = Page(title=TITLE, analytics_enabled=False, delete_cache=(FILES_KEPT_S, FILES_KEPT_S))
    with page:
        files = MadeFiles()
        page.temp_file_sets.append(files)
        add_endpoints(service)
        shared = Shared(service=service, files=files)
        gr.HTML(_HEADER, elem_id="header", apply_default_css=False)
        status = StatusLine(service.backends)
        tabs: dict[str, Tab] = {}
        with gr.Tabs(elem_id="tabs") as page_tabs:
            for kind in TABS:
                with gr.Tab(kind.title, id=kind.id, elem_id=f"{kind.id}-tab") as opened:
                    tab = tabs[kind.id] = kind(shared)
                tab.watch(opened)
                if len(tabs) > 1 and tab.loading is not None:
                    tab.loading.defer()
        panels = {name: tab.loading for name, tab in tabs.items() if tab.loading is not None}
        status.watch(page, page_tabs, panels)
        for tab in tabs.values():
            tab.store(page)
    page.max_threads = EVENTS_AT_ONCE
    page.queue(api_open=False)  # no request may bypass the queue and its limits
    poll_every(page, QUEUE_POLL_S)
    return page, harden(page, service.admission, service.usage, log_event)


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
