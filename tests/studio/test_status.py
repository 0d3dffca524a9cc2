"""The status line's updates of a page, without a server."""

import asyncio
from types import SimpleNamespace
from typing import Any

import gradio as gr

from hfjax_app.backends.backend import Models
from hfjax_app.runtime.programs import Programs
from hfjax_app.runtime.warm_up import WarmUp
from hfjax_app.studio.page import StatusLine
from hfjax_app.studio.tab import LoadingPanel


class Loader:
    """Loads a model that is only its name."""

    def load(self, model: str, on_report: Any) -> str:
        return model

    def warm_up(self, served: str) -> WarmUp:
        return WarmUp(Programs(), [], staged=False)

    def failure(self, served: str) -> None:
        return None

    def stop(self, served: str) -> None:
        pass


def test_tabs_of_one_kind_are_filled_independently() -> None:
    """The page remembered the kinds of filled panels, so that a second tab of a kind kept its empty controls."""
    chats = [Models("chat", Loader()) for _ in range(2)]
    backends = [models.add(name, name) for models, name in zip(chats, ("first", "second"), strict=True)]

    async def build() -> StatusLine:  # without a running loop, Gradio makes its own and never closes it
        with gr.Blocks() as page:
            status = StatusLine(SimpleNamespace(all=backends, device=lambda: "CPU"))
            panels = {}
            with gr.Tabs() as tabs:
                for models in chats:
                    with gr.Tab(models.first.name):
                        panel = panels[models.first.name] = LoadingPanel(models)
                        panel.fill([gr.Textbox()], lambda served: [served])
            status.watch(page, tabs, panels)
        return status

    status = asyncio.run(build())

    def poll(filled: list[str], opened: str = "first second") -> tuple[list[str], list[Any]]:
        """The state for the page's next poll, and the controls' values."""
        _, _, now_filled, *panels = status._refresh(filled, opened)
        return now_filled, [panels[2], panels[5]]

    skip = gr.skip()
    assert poll([]) == ([], [skip, skip])
    backends[0].warm_up()
    assert poll([]) == (["first"], ["first", skip])
    backends[1].warm_up()
    assert poll(["first"], "first") == (["first"], [skip, skip])
    assert poll(["first"]) == (["first", "second"], [skip, "second"])
    assert poll(["first", "second"]) == (["first", "second"], [skip, skip])
