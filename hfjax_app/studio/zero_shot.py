"""Zero-shot classification: the chat model says which of the visitor's own labels fits a text."""

import html
import time
from typing import Any

import gradio as gr

from hfjax_app.api.gradio_errors import errors_shown
from hfjax_app.api.sentiment import ZERO_SHOT_EVENT, SentimentApi
from hfjax_app.backends import Backend
from hfjax_app.embedded import MODELS
from hfjax_app.errors import RequestRejected
from hfjax_app.studio.event_options import UNPROCESSED

EXAMPLES = [
    ["I want my money back, it broke after a day.", "refund request, praise, bug report"],
    ["The goalkeeper saved us in the last minute.", "sports, politics, cooking"],
]


class ZeroShotPanel:
    """Builds its components and events in the surrounding gr.Blocks.

    Args:
        backend: the chat backend.
        api: classifies with it.
    """

    def __init__(self, backend: Backend[Any], api: SentimentApi):
        self._api = api
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
            f"answer is compared with how likely it is for an empty text.{untrained} A sentiment model for "
            "natural-language inference (NLI) is asked instead, if there is one.</div>"
        )
        examples = gr.Examples(EXAMPLES, [text, labels], label="Try one", api_visibility="private")
        classify, inputs, outputs = self._classify, [text, labels], [label, took]
        gr.on([button.click, labels.submit], classify, inputs, outputs, **UNPROCESSED, **ZERO_SHOT_EVENT)
        examples.load_input_event.then(classify, inputs, outputs, **UNPROCESSED, **ZERO_SHOT_EVENT)

    async def _classify(self, text: object, labels: object) -> list[Any]:
        started = time.perf_counter()
        with errors_shown():
            if not isinstance(labels, str):
                raise RequestRejected(f"labels: must be text, not {type(labels).__name__}")
            names = [name.strip() for name in labels.split(",") if name.strip()]
            scores = await self._api.label_scores(text, names)
        return [scores, f'<div class="note">{(time.perf_counter() - started) * 1e3:.0f} ms</div>']
