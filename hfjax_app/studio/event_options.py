"""Options that the page's events share. All are private: the API has endpoints of its own (`hfjax_app/api`)."""

from typing import Literal, TypedDict


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
