"""Stores values of components in the browser, so that they outlive a reload.

session_storage.js is the browser's part.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr
from gradio.components import Component

from hfjax_app.studio.event_options import UNQUEUED, UNQUEUED_UNPROCESSED


def store(
    page: gr.Blocks,
    component: gr.Gallery,
    restore: Callable[[Any], Any],
    outputs: Sequence[Component],
    *,
    stored_part: str = "value => value",
) -> None:
    """Store a component's value in the visitor's browser, and restore it when the page is loaded again.

    Args:
        page: the page with the component.
        component: has an `elem_id`, which names its value in the storage.
        restore: takes the stored value (None if there is none, and of any type, since the browser sends it) and returns
            the values of `outputs`.
        outputs: the components to restore.
        stored_part: a JavaScript function that returns the part of the value to store.
    """
    name = json.dumps(component.elem_id)
    component.change(None, component, js=f"value => {{ studio.store({name}, ({stored_part})(value)); }}", **UNQUEUED)
    stored = gr.Textbox(visible=False)  # carries any JSON value; `restore` checks it
    page.load(restore, stored, outputs, js=f"() => [studio.load({name})]", **UNQUEUED_UNPROCESSED)
