"""The page: top bar and tabs."""

import gradio as gr

from hfjax_app.api.endpoints import add_endpoints
from hfjax_app.limits import EVENTS_AT_ONCE
from hfjax_app.runtime.seams.gradio import poll_every
from hfjax_app.service.service import Service
from hfjax_app.studio.chat_tab import ChatTab
from hfjax_app.studio.engine_tab import EngineTab
from hfjax_app.studio.event_queue import FairQueue, LogEvent
from hfjax_app.studio.files import MadeFiles
from hfjax_app.studio.images_tab import ImagesTab
from hfjax_app.studio.mark import mark
from hfjax_app.studio.request_hardening import Page, harden
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
