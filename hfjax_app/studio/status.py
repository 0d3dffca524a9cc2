"""The state in the top bar. Its timer also opens the loading panels of tabs whose backends are ready."""

import html
from collections.abc import Mapping
from typing import Any

import gradio as gr

from hfjax_app.backends import Backend, Backends
from hfjax_app.studio.loading_panel import LoadingPanel

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
