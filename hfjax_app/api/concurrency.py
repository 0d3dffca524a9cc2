"""How many events of one kind Gradio runs at the same time."""

from typing import TypedDict


class Concurrency(TypedDict):
    """Options of Gradio events. Events with the same id share one queue and one limit."""

    concurrency_id: str
    concurrency_limit: int
