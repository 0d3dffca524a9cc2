"""Values of components that outlive a reload of the page; kept.js is their browser's half."""

import json
from collections.abc import Callable
from typing import Any

import gradio as gr
from gradio.components import Component


def keep(
    page: gr.Blocks,
    component: Component,
    restored: Callable[[Any], Any],
    outputs: list[Component],
    *,
    part: str = "value => value",
) -> None:
    """Keep a component's value in the visitor's browser, and hand it in when the page is loaded again.

    Args:
        component: has an `elem_id`, under which its value is kept.
        restored: given what the browser brings (whatever that is, None where it has nothing), the values of `outputs`.
        part: of the value, a JavaScript function: what shall be kept.
    """
    name = json.dumps(component.elem_id)
    event = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
    component.change(None, component, js=f"value => {{ studio.keep({name}, ({part})(value)); }}", **event)
    brought = gr.Textbox(visible=False)  # takes whatever comes; others judge it before `restored` can
    page.load(restored, brought, outputs, js=f"() => [studio.kept({name})]", preprocess=False, **event)
