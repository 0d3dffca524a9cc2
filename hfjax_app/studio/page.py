"""The page: top bar and tabs; the endpoints of Gradio's API; and what Gradio leaves open to clients, closed.

- Files are read only from the upload folder, nothing is downloaded from other hosts, and nothing is kept for links to a
  page's values (`runtime/seams/gradio.py`).
- A value that a component can't read is refused. Gradio writes it to the log, with what a visitor typed.
- The queue is fair between clients, bounded, and can't be stopped by a request (`event_queue.py`).

Which of Gradio's routes exist, and what a request may contain, is in `server/gradio_routes.py` and `gradio_events.py`.

Each module of `hfjax_app/api` that has a `register` function is found and called: a new endpoint is one file there,
whose `register(service)` adds it with `gr.api`. The timer of the top bar's state also opens the loading
panels of tabs whose backends are ready.
"""

import html
import importlib
import logging
import pkgutil
from collections.abc import Mapping
from typing import Any

import gradio as gr

import hfjax_app.api
from hfjax_app.backends import Backend, Backends
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
from hfjax_app.studio.images_tab import ImagesTab
from hfjax_app.studio.sentiment_tab import SentimentTab
from hfjax_app.studio.tab import LoadingPanel, Shared, Tab
from hfjax_app.studio.theme import mark


def add_endpoints(service: Service) -> None:
    """Add every endpoint to the surrounding gr.Blocks.

    Args:
        service: answers; its models may still be warming up.
    """
    for name in sorted(module.name for module in pkgutil.iter_modules(hfjax_app.api.__path__)):
        module = importlib.import_module(f"{hfjax_app.api.__name__}.{name}")
        if register := getattr(module, "register", None):
            register(service)


POLL_S = 1.0


class StatusLine:
    """Device and models in a few words, and a list of them under these. Pages poll it until all is settled.

    Args:
        backends: the models to report on.
    """

    def __init__(self, backends: Backends):
        self._backends = backends
        self._panels: Mapping[str, LoadingPanel[Any]] = {}
        self._line = gr.HTML('<span class="state">connecting …</span>', elem_id="status-line", apply_default_css=False)
        self._timer = gr.Timer(POLL_S)

    def watch(self, page: gr.Blocks, tabs: gr.Tabs, panels: Mapping[str, LoadingPanel[Any]]) -> None:
        """Keep the line and the panels of opened tabs up to date on this page.

        Args:
            page: the page.
            tabs: its tabs. A tab that was never opened stays closed: its components would be loaded for nothing.
            panels: by the tabs' ids.
        """
        self._panels = panels
        # A page fills each panel once, because its visitor may have changed the controls since.
        filled = gr.State([])  # ids of the tabs that this page has filled
        opened = gr.Textbox(visible=False)  # ids of the opened tabs, with spaces
        outputs = [
            self._line,
            self._timer,
            filled,
            *(component for panel in panels.values() for component in panel.components),
        ]
        gr.on(
            [page.load, self._timer.tick, tabs.select],
            self._refresh,
            [filled, opened],
            outputs,
            js="filled => [filled, studio.openedTabs()]",
            show_progress="hidden",
            show_progress_on=self._line,  # on a panel's line, which leaves the page, the tracker would never stop
            queue=False,
            trigger_mode="always_last",  # a tab that is opened while the page polls
            api_visibility="private",
        )

    def _refresh(self, filled: list[str], opened: str | None) -> list[Any]:
        """Not a coroutine, so that it runs in a thread: the first call starts jax, which takes long."""
        settled = all(backend.is_complete for backend in self._backends.all)
        shown = (opened or "").split()
        ready = [name for name, panel in self._panels.items() if panel.is_ready and name in {*shown, *filled}]
        updates: list[Any] = [gr.HTML(self._html()), gr.Timer(active=not settled), ready]
        for name, panel in self._panels.items():
            if name in shown:
                updates += panel.updates(fill=name in ready and name not in filled)
            else:
                updates += [gr.skip() for _ in panel.components]
        return updates

    def _html(self) -> str:
        device = html.escape(self._backends.device())
        dot, words = self._summary()
        chips = "".join(self._chip(backend) for backend in self._backends.all)
        return (
            f'<button type="button" class="state" popovertarget="models-state"><span class="dot {dot}"></span>'
            f'<span class="when-served"><span class="long">{device} · </span>{words}</span>'
            '<span class="when-gone">the server is gone</span></button>'
            f'<div class="status" id="models-state" popover><ul><li class="chip device"><span class="dot"></span>'
            f"<span><b>device</b> {device}</span></li>{chips}</ul></div>"
        )

    def _summary(self) -> tuple[str, str]:
        """The class of the dot and what it means, of all models together."""
        backends = self._backends.all
        waiting = [backend for backend in backends if not backend.is_settled]
        failed = [backend for backend in backends if backend.state == "failed"]
        growing = [backend for backend in backends if not backend.is_complete]
        if waiting:
            made = sum(len(backend.reports) for backend in waiting)
            expected = sum(max(len(backend.at_start), len(backend.reports)) for backend in waiting)
            return "wait", f"warming up, {made} of {expected}" if expected else "warming up"
        if failed:
            return "bad", f"{len(failed)} of {len(backends)} failed"
        if growing:
            made, expected = (
                sum(counts) for counts in zip(*((len(each.reports), each.expected) for each in growing), strict=True)
            )
            return "on", f'{made} of {expected}<span class="long"> programs; getting faster</span>'
        return "on", "all warm"

    @staticmethod
    def _chip(backend: Backend[Any]) -> str:
        progress, name = html.escape(backend.progress), html.escape(backend.name)
        model = "" if name == backend.kind else name
        return (
            f'<li class="chip {backend.state}"><span class="dot"></span><span><b>{backend.kind}</b> {model}</span>'
            f'<span class="doing num">{progress}</span></li>'
        )


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
