"""Updates that the browser makes without the server, so that they also happen when the server has stopped."""

import json
from collections.abc import Sequence
from typing import Any

from gradio.components import Component
from gradio.events import Dependency

from hfjax_app.studio.event_options import UNQUEUED


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
