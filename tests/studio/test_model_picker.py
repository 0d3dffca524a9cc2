"""The list of models on the page: what can be picked, and what follows the pick. Runs without a server."""

import asyncio
import json
from typing import Any

import gradio as gr
import pytest

from hfjax_app.backends import Backend
from hfjax_app.backends.backend import Models
from hfjax_app.runtime.programs import Programs
from hfjax_app.runtime.warm_up import WarmUp
from hfjax_app.studio.model_picker import ModelPicker
from hfjax_app.studio.tab import LoadingPanel

RECOMMENDED = {"first": (0.7, "Euler"), "<b>": (0.2, "DDIM")}  # temperature and scheduler


class Loader:
    """Loads a model that is only its name."""

    def load(self, model: str, watcher: Any) -> str:
        if model == "broken":
            raise ValueError("broken")
        return model

    def warm_up(self, served: str) -> WarmUp:
        return WarmUp(Programs(), [], staged=False)

    def failure(self, served: str) -> None:
        return None


@pytest.fixture
def models() -> Models[Any]:
    found: Models[Any] = Models("chat", Loader())  # type: ignore[arg-type]
    for name in ("first", "<b>", "broken", "last"):
        found.add(name, name)
    for backend in found:
        if backend.name != "last":
            backend.warm_up()
    return found


def build(models: Models[Any]) -> tuple[ModelPicker[Any], gr.Blocks]:
    """A page with a list, a line, a slider and a choice."""

    async def page() -> tuple[ModelPicker[Any], gr.Blocks]:  # without a running loop, Gradio would make its own
        with gr.Blocks() as blocks:
            picker = ModelPicker(models, "the-model")
            line, slider, choice = gr.HTML(), gr.Slider(0, 1), gr.Dropdown(["Euler", "DDIM"])

            def values(backend: Backend[Any]) -> list[dict[str, Any]]:
                served = backend.get()
                temperature, scheduler = RECOMMENDED[served]
                choices = ["Euler", "DDIM"] if served == "first" else ["DDIM"]
                return [
                    gr.update(value=served),
                    gr.update(value=temperature),
                    gr.update(value=scheduler, choices=choices),
                ]

            picker.fill(LoadingPanel(models), [line], [slider, choice], values)
        return picker, blocks

    return asyncio.run(page())


def test_models_that_are_not_ready_are_listed_and_can_not_be_picked(models: Models[Any]) -> None:
    shown = build(models)[0].refreshed()["value"]
    assert '<option value="first">first</option>' in shown
    assert '<option value="&lt;b&gt;">&lt;b&gt;</option>' in shown
    assert (
        "disabled>broken (can&#x27;t be used)</option>" in shown or "disabled>broken (can't be used)</option>" in shown
    )
    assert '<option value="last" title="waiting for its turn" disabled>last (warming up)</option>' in shown
    assert "hidden" not in shown
    alone: Models[Any] = Models("chat", Loader())  # type: ignore[arg-type]
    alone.add("first", "first")
    shown = build(alone)[0].refreshed()["value"]
    assert shown.startswith('<span class="model">first</span><select id="the-model-list" hidden>')


def test_what_a_visitor_has_not_changed_follows_the_model(models: Models[Any]) -> None:
    _, page = build(models)
    [picked] = [fn.fn for fn in page.fns.values() if fn.fn is not None and fn.fn.__name__ == "picked"]
    filled = json.dumps([0.7, "Euler"])
    _, _, now, line, slider, choice = picked("<b>", filled, 0.7, "Euler")
    assert json.loads(now) == [0.2, "DDIM"]
    assert (line["value"], slider["value"], choice["value"]) == ("<b>", 0.2, "DDIM")
    *_, line, slider, choice = picked("<b>", filled, 0.9, "Euler")
    assert (line["value"], "value" in slider, choice["value"]) == ("<b>", False, "DDIM")
    *_, slider, choice = picked("first", now, 0.2, "Euler")
    assert (slider["value"], "value" in choice) == (0.7, False), "a choice that both have stays"
    for hostile in (None, 5, "[", '{"a": 1}', [0.7]):
        assert picked("<b>", hostile, 0.9, "Euler")[4]["value"] == 0.2


def test_a_page_without_a_choice_has_the_first_model_that_is_ready() -> None:
    models: Models[Any] = Models("chat", Loader())  # type: ignore[arg-type]
    for name in ("broken", "first"):
        models.add(name, name).warm_up()
    picker = build(models)[0]
    assert picker.model("").name == picker.model(None).name == picker.model(5).name == "first"
    with pytest.raises(Exception, match="'gone' is not loaded; there are: broken, first"):
        picker.model("gone")
