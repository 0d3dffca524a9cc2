"""The interface of a tab. A new tab is a file in this folder with a class of it, and one entry in page.py's list."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import gradio as gr

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
