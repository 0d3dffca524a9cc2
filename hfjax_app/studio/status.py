"""The status line. Its timer also opens the loading panels of tabs whose backends are ready."""

import html
from collections.abc import Sequence
from typing import Any

import gradio as gr

from hfjax_app.backends import Backend, Backends
from hfjax_app.studio.loading_panel import LoadingPanel

POLL_S = 1.0


class StatusLine:
    """Device, models and the state of each backend. Pages poll it every second until all is settled.

    Args:
        backends: the models to report on.
    """

    def __init__(self, backends: Backends):
        self._backends = backends
        self._panels: Sequence[LoadingPanel[Any]] = ()
        self._line = gr.HTML('<div class="status">Connecting …</div>', elem_id="status-line")
        self._timer = gr.Timer(POLL_S)

    def watch(self, page: gr.Blocks, panels: Sequence[LoadingPanel[Any]]) -> None:
        """Keep the line and the panels up to date on this page."""
        self._panels = panels
        # A page fills each panel once, because its visitor may have changed the controls since.
        filled = gr.State([])  # indices of the panels that this page has filled
        outputs = [self._line, self._timer, filled, *(component for panel in panels for component in panel.components)]
        gr.on(
            [page.load, self._timer.tick],
            self._refresh,
            filled,
            outputs,
            show_progress="hidden",
            show_progress_on=self._line,  # on a panel's line, which leaves the page, the tracker would never stop
            queue=False,
            api_visibility="private",
        )

    def _refresh(self, filled: list[int]) -> list[Any]:
        """Not a coroutine, so that it runs in a thread: the first call starts jax, which takes long."""
        settled = all(backend.is_complete for backend in self._backends.all)
        ready = [index for index, panel in enumerate(self._panels) if panel.is_ready]
        updates: list[Any] = [gr.HTML(self._html()), gr.Timer(active=not settled), ready]
        for index, panel in enumerate(self._panels):
            updates += panel.updates(fill=index in ready and index not in filled)
        return updates

    def _html(self) -> str:
        device = html.escape(self._backends.device())
        chips = "".join(self._chip(backend) for backend in self._backends.all)
        return f'<div class="status"><span class="chip device"><b>device</b> {device}</span>{chips}</div>'

    @staticmethod
    def _chip(backend: Backend[Any]) -> str:
        progress, name = html.escape(backend.progress), html.escape(backend.name)
        model = "" if name == backend.kind else name
        doing = "" if backend.state == "ready" and backend.is_complete else f"<i>{progress}</i>"
        return f'<span class="chip {backend.state}" title="{progress}"><b>{backend.kind}</b> {model} {doing}</span>'
