"""Changes of components that a page makes by itself, so that it comes to rest also when its server has ended."""

import json
from collections.abc import Sequence
from typing import Any

from gradio.components import Component
from gradio.events import Dependency


def afterwards(event: Dependency, outputs: list[Component], updates: Sequence[dict[str, Any]]) -> None:
    """Make updates however the event ends: Gradio's `then` leaves out an event that failed.

    Args:
        updates: what `gr.update` returns, one for each output; their values are JSON.
    """
    script = f"() => {json.dumps(updates)}"
    for ended in (event.then, event.failure):
        ended(None, None, outputs, js=script, queue=False, show_progress="hidden", api_visibility="private")
