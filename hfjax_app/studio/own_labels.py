"""Your own labels: the chat model says which of the labels that a visitor types fits a text."""

import asyncio
import html
import time
from typing import Any

import gradio as gr

from hfjax_app.api.gradio_errors import refusals_shown
from hfjax_app.backends import Backend
from hfjax_app.embedded import MODELS
from hfjax_app.errors import ModelUnavailable, RequestRejected

CONCURRENCY = 4
EXAMPLES = [
    ["I want my money back, it broke after a day.", "refund request, praise, bug report"],
    ["The goalkeeper saved us in the last minute.", "sports, politics, cooking"],
]


class OwnLabels:
    """Builds its components and events in the surrounding gr.Blocks, and the API's `zero_shot`.

    Args:
        backend: the chat backend.
    """

    def __init__(self, backend: Backend):
        self._backend = backend
        with gr.Row(equal_height=False):
            with gr.Column(scale=3):
                text = gr.Textbox(
                    "", label="Text", placeholder="What is this about?", lines=3, max_lines=12, elem_id="own-text"
                )
                labels = gr.Textbox(
                    "",
                    label="Labels, separated by commas",
                    placeholder="refund request, praise, bug report",
                    elem_id="own-labels",
                )
                button = gr.Button("Classify with my labels", variant="primary", elem_id="own-classify")
            with gr.Column(scale=2):
                label = gr.Label(label="Label", elem_id="own-label")
                took = gr.HTML(elem_id="own-time")
        name = html.escape(backend.name)
        untrained = " This tiny one was never trained for that, and is mostly wrong." if backend.model in MODELS else ""
        gr.HTML(
            f'<div class="note">The chat model <b>{name}</b> is asked which label fits. How likely each one is as its '
            f"answer is compared with how likely it is for an empty text.{untrained}</div>"
        )
        examples = gr.Examples(EXAMPLES, [text, labels], label="Try one", api_visibility="private")
        # preprocess=False: values arrive as the client sent them, and the backend judges them
        shared = {
            "preprocess": False,
            "show_progress": "hidden",
            "concurrency_id": "zero-shot",
            "concurrency_limit": CONCURRENCY,
            "api_visibility": "private",
        }
        gr.on([button.click, labels.submit], self._classify, [text, labels], [label, took], **shared)
        examples.load_input_event.then(self._classify, [text, labels], [label, took], **shared)
        gr.api(self.zero_shot, api_name="zero_shot", concurrency_id="zero-shot", concurrency_limit=CONCURRENCY)

    async def zero_shot(self, text: str, labels: list[str]) -> dict[str, float]:
        """The probability of each of your own labels for a text, by the chat model."""
        return await self._scores(text, labels)

    async def _classify(self, text: object, labels: object) -> list[Any]:
        started = time.perf_counter()
        with refusals_shown():
            if not isinstance(labels, str):
                raise RequestRejected(f"labels: must be text, not {type(labels).__name__}")
        names = [name.strip() for name in labels.split(",") if name.strip()]
        scores = await self._scores(text, names)
        return [scores, f'<div class="note">{(time.perf_counter() - started) * 1e3:.0f} ms</div>']

    async def _scores(self, text: object, labels: object) -> dict[str, float]:
        with refusals_shown():
            zero_shot = self._backend.get().zero_shot
            if zero_shot is None:
                raise ModelUnavailable(f"the chat model {self._backend.name} can't judge labels")
            return await asyncio.to_thread(zero_shot.classify, text, labels)
