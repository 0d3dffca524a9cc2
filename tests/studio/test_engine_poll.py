"""What the tab Engine answers to its pages, also to those that say something odd. Without a server."""

import asyncio
import re

import gradio as gr
import pytest

from hfjax_app.backends import Backends
from hfjax_app.service.service import Service
from hfjax_app.settings import load_settings
from hfjax_app.studio.engine_tab import EngineTab, _Pace
from hfjax_app.studio.tab import Shared


@pytest.fixture(scope="module")
def tab() -> EngineTab:
    """A tab of an app whose models have not started."""

    async def build() -> EngineTab:  # without a running loop, Gradio makes its own and never closes it
        with gr.Blocks():
            return EngineTab(Shared(service=Service(Backends(load_settings())), files=None))

    return asyncio.run(build())


@pytest.mark.parametrize("shown", [None, "", "  ", 5, ["a"], {"a": 1}, True])
def test_a_page_that_shows_nothing_is_told_to_ask_no_more(tab: EngineTab, shown: object) -> None:
    live, programs, timer = tab._changed(shown)
    assert (live, programs) == (gr.skip(), gr.skip())
    assert not timer.active


def test_only_what_has_changed_is_sent(tab: EngineTab) -> None:
    first_live, first_programs, ladder, timer = tab._opened()
    assert "waiting for its turn" in first_live
    assert "The ladder" in ladder
    assert timer.active
    live, programs, _ = tab._changed("x" * 100_000)
    assert (live, programs) == (first_live, first_programs)
    known = " ".join(re.findall(r'data-digest="(\w+)"', first_live + first_programs))
    live, programs, timer = tab._changed(known)
    assert (live, programs) == (gr.skip(), gr.skip())
    assert timer.active


def test_many_pages_ask_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    pace = _Pace()
    assert pace.polled() == 1.0
    for _ in range(20):
        now += 1.0
        for _ in range(round(80 / pace.polled())):  # eighty pages
            every_s = pace.polled()
    assert every_s == pytest.approx(10.0, abs=1.0)
    now += 3600
    assert pace.polled() == 1.0
