"""The sentiment tab: a text in, the probabilities of all labels out."""

import asyncio
import time

import gradio as gr

from hfjax_app.backends import Backend
from hfjax_app.studio.refusal import refusals_shown
from hfjax_app.studio.status import Gate

CONCURRENCY = 4
EXAMPLES = [
    "I loved every minute of it.",
    "The soup was cold and the waiter never came back.",
    "The train leaves at nine.",
    "A great cast, but a dull story.",
    "Not bad at all!",
]


class SentimentTab:
    """Builds the tab's components and events in the surrounding gr.Blocks."""

    def __init__(self, backend: Backend):
        self._backend = backend
        self.gate = Gate(backend)
        with self.gate.panel, gr.Row(equal_height=False):
            with gr.Column(scale=3):
                text = gr.Textbox(
                    "",
                    label="Text",
                    placeholder="How does this sentence feel?",
                    lines=3,
                    max_lines=12,
                    elem_id="sentiment-text",
                )
                button = gr.Button("Classify", variant="primary", elem_id="classify")
            with gr.Column(scale=2):
                label = gr.Label(label="Sentiment", num_top_classes=3, elem_id="sentiment-label")
                took = gr.HTML(elem_id="sentiment-time")
        with self.gate.panel:
            examples = gr.Examples(
                EXAMPLES, text, label="Try one", elem_id="sentiment-examples", api_visibility="private"
            )
        # preprocess=False: the text arrives as the client sent it, and the backend judges it
        shared = {
            "preprocess": False,
            "show_progress": "hidden",
            "concurrency_id": "sentiment",
            "concurrency_limit": CONCURRENCY,
            "api_visibility": "private",
        }
        gr.on([button.click, text.submit], self._classify, [text], [label, took], **shared)
        examples.load_input_event.then(self._classify, [text], [label, took], **shared)
        gr.api(self.classify, api_name="classify", concurrency_id="sentiment", concurrency_limit=CONCURRENCY)

    async def _classify(self, text: object) -> tuple[dict[str, float], str]:
        started = time.perf_counter()
        scores = await self._scores(text)
        took = (time.perf_counter() - started) * 1e3
        return scores, f'<div class="note">{took:.1f} ms</div>'

    async def classify(self, text: str) -> dict[str, float]:
        """The probability of each sentiment for a text."""
        return await self._scores(text)

    async def _scores(self, text: object) -> dict[str, float]:
        with refusals_shown():
            return (await asyncio.to_thread(self._backend.get().classify, [text]))[0]
