"""The panel that hides a tab's controls until its backend is ready."""

import html
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import gradio as gr
from gradio.blocks import Block

from hfjax_app.backends import Backend
from hfjax_app.backends.models import Models

T = TypeVar("T")


class LoadingPanel(Generic[T]):
    """A tab's content: a line with the progress of the warm-up, which the controls replace when the backend is ready.

    Use `with loading.panel:` to add the controls.

    Args:
        models: of which the tab needs one.
    """

    def __init__(self, models: Models[T]):
        self._models = models
        self.line = gr.HTML(self._line(), elem_classes="waiting-line")
        self.panel = gr.Column(visible=False)
        self._filled: Sequence[Block] = ()
        self._values: Callable[[T], list[Any]] = lambda served: []

    def fill(self, controls: Sequence[Block], values: Callable[[T], list[Any]]) -> None:
        """Give controls values that depend on the loaded model.

        Args:
            controls: some of the controls.
            values: takes the loaded model and returns one update for each of `controls`.
        """
        self._filled, self._values = controls, values

    @property
    def backend(self) -> Backend[T]:
        """The model that the tab shows first."""
        return self._models.usable

    @property
    def is_ready(self) -> bool:
        return self.backend.state == "ready"

    @property
    def components(self) -> list[Block]:
        """The components that `updates` updates."""
        return [self.line, self.panel, *self._filled]

    def updates(self, *, fill: bool) -> list[Any]:
        """New values for `components`.

        Args:
            fill: whether to include the values that depend on the loaded model.
        """
        ready = self.is_ready
        values = self._values(self.backend.get()) if fill else [gr.skip()] * len(self._filled)
        return [gr.HTML(self._line(), visible=not ready), gr.Column(visible=ready), *values]

    def _line(self) -> str:
        model, progress = html.escape(self.backend.name), html.escape(self.backend.progress)
        if self.backend.state == "failed":
            return f'<div class="waiting failed"><strong>{model}</strong> can\'t be used. {progress}</div>'
        share = self.backend.share_done
        value = "" if share is None else f' value="{share:.3f}"'  # without a value it moves to and fro
        bar = f'<progress aria-label="warm-up of {model}"{value}></progress>'
        return f'<div class="waiting">Warming up <strong>{model}</strong>: {progress}{bar}</div>'
