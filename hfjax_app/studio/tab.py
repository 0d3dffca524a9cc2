"""The interface of a tab, and what the events of all tabs share. A new tab is a file in this folder with a class of it,
and one entry in page.py's list.

Events are private: the API has endpoints of its own (`hfjax_app/api`). Updates after an event are made by the browser,
so that they also happen when the server has stopped.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypedDict

import gradio as gr
from gradio.components import Component
from gradio.events import Dependency

from hfjax_app.backends import Backends
from hfjax_app.service.service import Service
from hfjax_app.studio.files import MadeFiles
from hfjax_app.studio.loading_panel import LoadingPanel


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
