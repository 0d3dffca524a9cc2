"""The page: header, status line and the tabs."""

import gradio as gr

from hfjax_app.api.admission import Admission
from hfjax_app.api.endpoints import Endpoints
from hfjax_app.api.usage import Usage
from hfjax_app.backends import Backends
from hfjax_app.limits import EVENTS_AT_ONCE
from hfjax_app.studio.chat_tab import ChatTab
from hfjax_app.studio.event_queue import FairQueue, LogEvent
from hfjax_app.studio.files import MadeFiles
from hfjax_app.studio.images_tab import ImagesTab
from hfjax_app.studio.request_hardening import Page, harden
from hfjax_app.studio.sentiment_tab import SentimentTab
from hfjax_app.studio.status import StatusLine
from hfjax_app.studio.tab import Shared, Tab

TITLE = "hfjax studio"
TABS: tuple[type[Tab], ...] = (ChatTab, SentimentTab, ImagesTab)  # in their order on the page
FILES_KEPT_S = 24 * 3600
QUEUE_POLL_S = 0.01  # Gradio's default of a millisecond takes a fourteenth of a core

_HEADER = f"<h1>{TITLE}</h1><p>PyTorch models from Hugging Face, computed by JAX.</p>"


def build_studio(
    backends: Backends, admission: Admission, usage: Usage, log_event: LogEvent
) -> tuple[gr.Blocks, FairQueue]:
    """The studio for these backends, which may still be warming up.

    Args:
        backends: chat, sentiment and images.
        admission: of its events.
        usage: the clients' tokens.
        log_event: see `FairQueue.take_over`.

    Returns:
        Blocks, whose theme and CSS are added when they are served (`hfjax_app/server/app.py`), and their queue.
    """
    page = Page(title=TITLE, analytics_enabled=False, delete_cache=(FILES_KEPT_S, FILES_KEPT_S))
    with page:
        files = MadeFiles()
        page.temp_file_sets.append(files)
        shared = Shared(backends=backends, endpoints=Endpoints(backends, usage), files=files)
        gr.HTML(_HEADER, elem_id="header")
        status = StatusLine(backends)
        tabs = []
        for kind in TABS:
            with gr.Tab(kind.title, id=kind.id):
                tabs.append(kind(shared))
        status.watch(page, [tab.loading for tab in tabs])
        for tab in tabs:
            tab.store(page)
    page.max_threads = EVENTS_AT_ONCE
    page.queue(api_open=False)  # no request may bypass the queue and its limits
    page._queue.sleep_when_free = QUEUE_POLL_S
    return page, harden(page, admission, usage, log_event)
