"""What a tab of the page is. A new one is a file in this folder with such a class, and one entry in page.py's list."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import gradio as gr

from hfjax_app.api.endpoints import Endpoints
from hfjax_app.backends import Backends
from hfjax_app.studio.files import MadeFiles
from hfjax_app.studio.loading_panel import LoadingPanel


@dataclass(frozen=True, kw_only=True, eq=False)
class Shared:
    """What the tabs of a page have in common.

    Args:
        backends: the models; they may still be warming up.
        endpoints: the API, whose objects tabs ask too.
        files: those that are made for visitors.
    """

    backends: Backends
    endpoints: Endpoints
    files: MadeFiles


class Tab(Protocol):
    """Builds its components and events in the surrounding gr.Blocks when it is made.

    Attributes:
        title: on the page.
        id: among the tabs.
        loading: holds its controls until its backend is ready.
    """

    title: ClassVar[str]
    id: ClassVar[str]
    loading: LoadingPanel

    def __init__(self, shared: Shared): ...

    def keep(self, page: gr.Blocks) -> None:
        """Keep in the browser what shall outlive a reload, see `session_storage.py`. By itself a tab keeps nothing."""
