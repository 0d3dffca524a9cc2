"""The status line, which also opens the loading panels of tabs whose backends are ready."""

import html
from typing import Any

import gradio as gr

from hfjax_app.backends import Backend, Backends
from hfjax_app.studio.loading_panel import LoadingPanel

POLL_S = 1.0
_SETTLED = ("ready", "failed")


class StatusLine:
    """Device, models and what each backend is doing; asked for every second until all are ready or failed.

    Args:
        backends: what to report on.
    """

    def __init__(self, backends: Backends):
        self._backends = backends
        self._line = gr.HTML('<div class="status">Connecting …</div>', elem_id="status-line")
        self._timer = gr.Timer(POLL_S)

    def watch(self, page: gr.Blocks, panels: list[LoadingPanel]) -> None:
        """Keep the line and the panels up to date on this page."""
        self._panels = panels
        filled = gr.State([])  # names of the backends whose controls this page has got: visitors change them
        outputs = [self._line, self._timer, filled, *(component for panel in panels for component in panel.components)]
        gr.on(
            [page.load, self._timer.tick],
            self._refresh,
            filled,
            outputs,
            show_progress="hidden",
            show_progress_on=self._line,  # the panels' lines leave the page, and would count its seconds for ever
            queue=False,
            api_visibility="private",
        )

    def _refresh(self, filled: list[str]) -> list[Any]:
        """Runs in a thread of Gradio's, because the first look at the devices starts jax."""
        settled = all(backend.state in _SETTLED for backend in self._backends.all)
        ready = [panel.backend.kind for panel in self._panels if panel.backend.state == "ready"]
        updates = [gr.HTML(self._html()), gr.Timer(active=not settled), ready]
        for panel in self._panels:
            name = panel.backend.kind
            updates += panel.updates(fill=name in ready and name not in filled)
        return updates

    def _html(self) -> str:
        device = html.escape(self._backends.device())
        chips = "".join(self._chip(backend) for backend in self._backends.all)
        return f'<div class="status"><span class="chip device"><b>device</b> {device}</span>{chips}</div>'

    @staticmethod
    def _chip(backend: Backend) -> str:
        progress, model = html.escape(backend.progress), html.escape(backend.name)
        named = "" if model == backend.kind else model
        doing = "" if backend.state == "ready" else f"<i>{progress}</i>"
        return f'<span class="chip {backend.state}" title="{progress}"><b>{backend.kind}</b> {named} {doing}</span>'
