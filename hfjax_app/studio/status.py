"""The status line, and the gates that keep a tab's controls closed until its backend is warm."""

import html
from collections.abc import Callable
from typing import Any

import gradio as gr

from hfjax_app.backends import Backend, Backends

POLL_S = 1.0
_SETTLED = ("ready", "failed")


class Gate:
    """A tab's content: a line that says what the tab waits for, then, once its backend is ready, the controls.

    Use `with gate.panel:` to add the controls.
    """

    def __init__(self, backend: Backend):
        self.backend = backend
        self.line = gr.HTML(self._line(), elem_classes="waiting-line")
        self.panel = gr.Column(visible=False)
        self._filled: list[gr.blocks.Block] = []
        self._values: Callable[[Any], list[Any]] = lambda instance: []

    def fill(self, controls: list[gr.blocks.Block], values: Callable[[Any], list[Any]]) -> None:
        """Give controls what only the ready backend knows: `values(backend)` are their updates, in order."""
        self._filled, self._values = controls, values

    @property
    def components(self) -> list[gr.blocks.Block]:
        return [self.line, self.panel, *self._filled]

    def updates(self, *, fill: bool) -> list[gr.blocks.Block]:
        """New values for `components`; those of the filled controls only if asked for."""
        ready = self.backend.state == "ready"
        values = self._values(self.backend.get()) if fill else [gr.skip()] * len(self._filled)
        return [gr.HTML(self._line(), visible=not ready), gr.Column(visible=ready), *values]

    def _line(self) -> str:
        model, progress = html.escape(self.backend.name), html.escape(self.backend.progress)
        if self.backend.state == "failed":
            return f'<div class="waiting failed"><strong>{model}</strong> can\'t be used. {progress}</div>'
        return (
            f'<div class="waiting"><span class="spinner"></span>Warming up <strong>{model}</strong>: {progress}</div>'
        )


class StatusLine:
    """Device, models and what each backend is doing; asked for every second until all are ready or failed.

    Args:
        backends: what to report on.
    """

    def __init__(self, backends: Backends):
        self._backends = backends
        self._line = gr.HTML('<div class="status">Connecting …</div>', elem_id="status-line")
        self._timer = gr.Timer(POLL_S)

    def watch(self, page: gr.Blocks, gates: list[Gate]) -> None:
        """Keep the line and the gates up to date on this page."""
        self._gates = gates
        filled = gr.State([])  # names of the backends whose controls this page has got: visitors change them
        outputs = [self._line, self._timer, filled, *(component for gate in gates for component in gate.components)]
        gr.on(
            [page.load, self._timer.tick],
            self._refresh,
            filled,
            outputs,
            show_progress="hidden",
            show_progress_on=self._line,  # the gates' lines leave the page, and would count its seconds for ever
            queue=False,
            api_visibility="private",
        )

    def _refresh(self, filled: list[str]) -> list[Any]:
        """Runs in a thread of Gradio's, because the first look at the devices starts jax."""
        settled = all(backend.state in _SETTLED for backend in self._backends.all)
        ready = [gate.backend.kind for gate in self._gates if gate.backend.state == "ready"]
        updates = [gr.HTML(self._html()), gr.Timer(active=not settled), ready]
        for gate in self._gates:
            name = gate.backend.kind
            updates += gate.updates(fill=name in ready and name not in filled)
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
