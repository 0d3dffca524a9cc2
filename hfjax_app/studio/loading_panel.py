"""The panel that keeps a tab's controls closed until its backend is warm."""

import html
from collections.abc import Callable
from typing import Any

import gradio as gr

from hfjax_app.backends import Backend


class LoadingPanel:
    """A tab's content: a line that says what the tab waits for, then, once its backend is ready, the controls.

    Use `with loading.panel:` to add the controls.
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
