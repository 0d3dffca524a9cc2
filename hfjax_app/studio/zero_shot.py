"""Zero-shot classification: the chat model says which of the visitor's own labels fits a text."""

import html
import json
import time
from typing import Any

import gradio as gr

from hfjax_app.api.gradio_errors import errors_shown
from hfjax_app.api.sentiment import ZERO_SHOT_EVENT
from hfjax_app.backends import Backend
from hfjax_app.embedded import MODELS
from hfjax_app.errors import RequestRejected
from hfjax_app.service.sentiment import SentimentService
from hfjax_app.studio.event_options import UNPROCESSED, UNQUEUED
from hfjax_app.studio.label_drawing import FAILED, scores
from hfjax_app.studio.spoken import SAYS
from hfjax_app.studio.updates import update_after_failure

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

    def __init__(self, backend: Backend[Any], service: SentimentService):
        self._service = service
        with gr.Row(equal_height=True, elem_classes="pair"):
            with gr.Column(scale=3, elem_classes="card"):
                text = gr.Textbox(
                    "", label="Text", placeholder="What is this about?", lines=1, max_lines=12, elem_id="own-text"
                )
                labels = gr.Textbox(
                    "",
                    label="Labels, separated by commas",
                    placeholder="refund request, praise, bug report",
                    elem_id="own-labels",
                )
                with gr.Row(elem_classes="actions"):
                    button = gr.Button("Classify with my labels", variant="primary", elem_id="own-classify")
                gr.HTML('<p class="try">Try one</p>', apply_default_css=False)
                with gr.Row(elem_classes="gallery"):
                    examples = [gr.Button(example[0], elem_classes="gallery-item") for example in EXAMPLES]
            with gr.Column(scale=2, elem_classes="card"):
                result = gr.HTML(_nothing_yet(backend), elem_id="own-result", js_on_load=SAYS, apply_default_css=False)
        classify, inputs, outputs = self._classify, [text, labels], [result]
        asked = [
            gr.on(
                [button.click, text.submit, labels.submit], classify, inputs, outputs, **UNPROCESSED, **ZERO_SHOT_EVENT
            ),
        ]
        for example, values in zip(examples, EXAMPLES, strict=True):
            filled = example.click(None, None, inputs, js=f"() => {json.dumps(values)}", **UNQUEUED)
            asked.append(filled.then(classify, inputs, outputs, **UNPROCESSED, **ZERO_SHOT_EVENT))
        for event in asked:
            update_after_failure(event, outputs, [gr.update(value=FAILED)])

    async def _classify(self, text: object, labels: object) -> list[Any]:
        started = time.perf_counter()
        with errors_shown():
            if not isinstance(labels, str):
                raise RequestRejected(f"labels: must be text, not {type(labels).__name__}")
            names = [name.strip() for name in labels.split(",") if name.strip()]
            scored = await self._service.label_scores(text, names)
        return [scores(scored, note=f"{(time.perf_counter() - started) * 1e3:.0f} ms")]


def _nothing_yet(backend: Backend[Any]) -> str:
    untrained = " This tiny one was never trained for that, and is mostly wrong." if backend.model in MODELS else ""
    return (
        f'<div class="result none"><p class="note">The chat model <b>{html.escape(backend.name)}</b> is asked which '
        f"label fits: how likely each one is as its answer, compared with an empty text.{untrained} A sentiment model "
        "for natural-language inference (NLI) is asked instead, if there is one.</p></div>"
    )
