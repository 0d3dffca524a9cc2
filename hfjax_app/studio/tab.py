"""The interface of a tab, and what the events of all tabs share. A new tab is a file in this folder with a class of it,
and one entry in page.py's list.

Events are private: the API has endpoints of its own (`hfjax_app/api`). Updates after an event are made by the browser,
so that they also happen when the server has stopped. A panel hides a tab's controls until its backend is ready.
"""

import html
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Protocol, TypedDict, TypeVar

import gradio as gr
from gradio.components import Component
from gradio.events import Dependency

from hfjax_app.backends import Backend, Backends
from hfjax_app.backends.backend import Models
from hfjax_app.runtime.seams.gradio import Block, BlockContext
from hfjax_app.service.service import Service
from hfjax_app.studio.files import MadeFiles
from hfjax_app.studio.theme import mark

T = TypeVar("T")

_TICK = '<svg class="i" viewBox="0 0 24 24" aria-hidden="true"><path d="m5 12.5 4.5 4.5L19 7.5"/></svg>'
_WAY = (  # of each program, with the state in which it is there
    ("PyTorch", "the model's own code, unchanged", "waiting"),
    ("torchax", "writes down every operation once", "loading"),
    ("XLA", "compiles them for this device", "compiling"),
    ("warm", "runs from now on, never compiled again", "ready"),
)
_PARTS = 20  # cells of a download
_TITLES = {
    "waiting": "Next: {}",
    "preparing": "Getting {}",
    "loading": "Loading {}",
    "compiling": "Compiling {}",
    "ready": "{} is ready",
}


class LoadingPanel(Generic[T]):
    """A tab's content: the progress of the warm-up, which the controls replace when the backend is ready.

    Use `with loading.panel:` to add the controls.

    Args:
        models: of which the tab needs one.
    """

    def __init__(self, models: Models[T]):
        self._models = models
        self.line = gr.HTML(self._html(), elem_classes="waiting-line", apply_default_css=False)
        self.panel = gr.Column(visible=False)
        self._filled: Sequence[Block] = ()
        self._deferred: Sequence[Component] = ()
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

    def defer(self) -> None:
        """Load the controls when the panel opens: a page loads the code of what is visible in any of its tabs."""
        leaves = [each for each in _leaves(self.panel) if not isinstance(each, gr.Timer)]  # which is never visible
        self._deferred = [each for each in leaves if each.visible is True]
        for each in self._deferred:
            each.visible = False

    @property
    def is_ready(self) -> bool:
        return self.backend.state == "ready"

    @property
    def components(self) -> list[Block]:
        """The components that `updates` updates."""
        return [self.line, self.panel, *self._deferred, *self._filled]

    def updates(self, *, fill: bool) -> list[Any]:
        """New values for `components`.

        Args:
            fill: whether to include the values that depend on the loaded model, and what was deferred.
        """
        ready = self.is_ready
        shown = [gr.update(visible=True) if fill else gr.skip() for _ in self._deferred]
        values = self._values(self.backend.get()) if fill else [gr.skip()] * len(self._filled)
        return [gr.HTML("" if ready else self._html(), visible=not ready), gr.Column(visible=ready), *shown, *values]

    def _html(self) -> str:
        backend = self.backend
        name, state = html.escape(backend.name), backend.state
        if state == "failed":
            reason = html.escape(backend.error or "")
            return (
                f'<section class="start failed waiting"><div class="start-head">{mark()}<div>'
                f"<h2>{name} can't be used</h2><p>{reason}</p>"
                "<p>The other tabs work. The server's log says more.</p></div></div></section>"
            )
        return (
            f'<section class="start waiting"><div class="start-head">{mark(waving=state != "waiting")}<div>'
            f"<h2>{_TITLES[state].format(name)}</h2><p>PyTorch's own model code becomes programs for this machine. The "
            "next start reads them from a cache and takes a few seconds.</p></div></div>"
            f"{self._progress()}{self._steps()}{_way(state)}</section>"
        )

    def _progress(self) -> str:
        """The cells: one for each program of the start."""
        backend = self.backend
        made, count = len(backend.reports), max(len(backend.at_start), len(backend.reports))
        doing = html.escape(backend.progress[:1].upper() + backend.progress[1:])
        where = f"Program {min(made + 1, count)} of {count}" if count else doing
        if backend.state == "preparing":
            made, count = round(_PARTS * (backend.share_done or 0)), _PARTS
        left = "" if backend.seconds_left is None else f", about {backend.seconds_left:.0f} s left"
        seconds = round(backend.seconds_so_far)
        took = f'<span data-seconds="{seconds}">{seconds}</span> s so far{left}' if seconds else ""
        cells = "".join(
            f'<i class="{"f" if at < made else "now" if at == made else ""}"></i>' for at in range(count or 1)
        )
        value = f'aria-valuemin="0" aria-valuemax="{count}" aria-valuenow="{made}"' if count else ""
        return (
            f'<div class="prog"><div class="line"><b>{where}</b><span>{took}</span></div>'
            f'<div class="bar" role="progressbar" aria-label="warm-up of {html.escape(backend.name)}" {value} '
            f'aria-valuetext="{where}{left}">{cells}</div></div>'
        )

    def _steps(self) -> str:
        """The programs by name: with their seconds, what is compiled now, and what is to come."""
        backend = self.backend
        done = [_step("done", "Done", report.name, f"{report.seconds:.1f} s") for report in backend.reports]
        now, *others = [*backend.at_start[len(done) :], ""]
        doing = [_step("now", "Now", now, "compiling")] if now else []
        to_come = [_step("", "To come", name, "") for name in others if name]
        steps = "".join([*done, *doing, *to_come])
        return f'<ol class="steps">{steps}</ol>' if steps else ""


def _leaves(block: BlockContext) -> Iterator[Component]:
    for child in block.children:
        if isinstance(child, BlockContext):
            yield from _leaves(child)
        elif isinstance(child, Component):
            yield child


def _step(kind: str, spoken: str, name: str, time: str) -> str:
    return (
        f'<li class="{kind}"><span class="s">{_TICK if kind == "done" else ""}</span>'
        f'<b><span class="sr">{spoken}: </span>{html.escape(name)}</b><span class="t">{time}</span></li>'
    )


def _way(state: str) -> str:
    now = ' class="now" aria-current="step"'
    steps = "".join(f"<li{now if state == at else ''}><b>{name}</b><span>{what}</span></li>" for name, what, at in _WAY)
    return f'<div class="path"><h3>What each program goes through</h3><ol>{steps}</ol></div>'


@dataclass(frozen=True, kw_only=True, eq=False)
class Shared:
    """What the tabs of a page share.

    Args:
        service: the models and what answers with them; they may still be warming up.
        files: the files that are made for visitors.
    """

    service: Service
    files: MadeFiles

    @property
    def backends(self) -> Backends:
        return self.service.backends


class Tab(Protocol):
    """Its constructor builds components and events in the surrounding gr.Blocks.

    Attributes:
        title: the tab's title on the page.
        id: the tab's id, unique on the page.
        loading: the panel that hides the controls until the backend is ready; None for a tab that needs none.
    """

    title: ClassVar[str]
    id: ClassVar[str]
    loading: LoadingPanel[Any] | None

    def __init__(self, shared: Shared): ...

    def watch(self, tab: gr.Tab) -> None:
        """Add the events of the tab itself, such as its opening. By default there are none."""

    def store(self, page: gr.Blocks) -> None:
        """Store in the browser what outlives a reload, see `session_storage.py`. By default that is nothing."""


class EventOptions(TypedDict, total=False):
    """Keyword arguments of Gradio's event listeners."""

    preprocess: bool
    queue: bool
    show_progress: Literal["full", "minimal", "hidden"]
    api_visibility: Literal["public", "private", "undocumented"]


# The function gets the values as the client sent them, and the backend checks them.
UNPROCESSED: EventOptions = {"preprocess": False, "show_progress": "hidden", "api_visibility": "private"}
# The event runs at once, past Gradio's queue.
UNQUEUED: EventOptions = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
UNQUEUED_UNPROCESSED: EventOptions = {**UNPROCESSED, **UNQUEUED}


def update_after(event: Dependency, outputs: Sequence[Component], updates: Sequence[dict[str, Any]]) -> None:
    """Update components when an event has ended, successfully or not.

    Gradio's `then` does not run after an event that failed.

    Args:
        event: the event.
        outputs: the components to update.
        updates: what `gr.update` returns, one for each output; their values are JSON.
    """
    event.then(None, None, outputs, js=_script(updates), **UNQUEUED)
    update_after_failure(event, outputs, updates)


def update_after_failure(event: Dependency, outputs: Sequence[Component], updates: Sequence[dict[str, Any]]) -> None:
    """The same where the event has failed only."""
    event.failure(None, None, outputs, js=_script(updates), **UNQUEUED)


def _script(updates: Sequence[dict[str, Any]]) -> str:
    return f"() => {json.dumps(updates)}"


def typed_seed(typed: object) -> object:
    """The number in a seed's field, or None if the field is empty.

    Any other value is returned unchanged, for the backend to reject.
    """
    if not isinstance(typed, str):
        return typed
    if not typed.strip():
        return None
    return int(typed) if typed.strip().isdecimal() and len(typed) <= 40 else typed
