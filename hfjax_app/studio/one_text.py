"""One text: the probabilities of all labels, and the contribution of each word."""

import html
import time
from typing import Any

import gradio as gr

from hfjax_app.api.gradio_errors import errors_shown
from hfjax_app.api.sentiment import EVENT, SentimentApi
from hfjax_app.backends import Backend
from hfjax_app.sentiment import Explanation, Prediction
from hfjax_app.studio.event_options import UNPROCESSED

EXAMPLES = [
    "I loved every minute of it.",
    "The soup was cold and the waiter never came back.",
    "The train leaves at nine.",
    "A great cast, but a dull story.",
    "Not bad at all!",
]
_NOTHING_YET = "Why shows which words decided; a click on a label asks for that one."


class OneText:
    """Builds its components and events in the surrounding gr.Blocks."""

    def __init__(self, backend: Backend[Any], api: SentimentApi):
        self._backend, self._api = backend, api
        with gr.Row(equal_height=False):
            with gr.Column(scale=3):
                text = gr.Textbox(
                    "",
                    label="Text",
                    placeholder="How does this sentence feel?",
                    lines=3,
                    max_lines=12,
                    elem_id="sentiment-text",
                )
                with gr.Row():
                    button = gr.Button("Classify", variant="primary", elem_id="classify")
                    why = gr.Button("Why?", elem_id="why")
            with gr.Column(scale=2):
                label = gr.Label(label="Sentiment", num_top_classes=8, elem_id="sentiment-label")
                took = gr.HTML(elem_id="sentiment-time")
        words = gr.HighlightedText(
            label="Why",
            show_legend=False,
            show_inline_category=False,
            interactive=False,
            visible=False,
            elem_id="sentiment-words",
        )
        reason = gr.HTML(_note(_NOTHING_YET), elem_id="sentiment-reason")
        examples = gr.Examples(EXAMPLES, text, label="Try one", elem_id="sentiment-examples", api_visibility="private")
        outputs = [label, took, words, reason]
        gr.on([button.click, text.submit], self._classify, [text], outputs, **UNPROCESSED, **EVENT)
        examples.load_input_event.then(self._classify, [text], outputs, **UNPROCESSED, **EVENT)
        why.click(self._why, [text], outputs, **UNPROCESSED, **EVENT)
        label.select(self._why_label, [text], outputs, **UNPROCESSED, **EVENT)

    async def _classify(self, text: object) -> list[Any]:
        with errors_shown():
            started = time.perf_counter()
            prediction = await self._api.predict(text)
            note = self._facts(prediction, started)
            return [prediction.scores, note, gr.HighlightedText(visible=False), _note(_NOTHING_YET)]

    async def _why(self, text: object) -> list[Any]:
        return await self._explained(text, None)

    async def _why_label(self, text: object, event: gr.SelectData) -> list[Any]:
        return await self._explained(text, event.value)

    async def _explained(self, text: object, label: object) -> list[Any]:
        with errors_shown():
            prediction = await self._api.predict(text)
            started = time.perf_counter()
            explanation = await self._api.explanation(text, label)
            took = (time.perf_counter() - started) * 1e3
        words = gr.HighlightedText(shown_words(explanation), visible=True)
        change = explanation.logit - explanation.baseline
        reason = (
            f"Red words moved the model towards <b>{html.escape(explanation.label)}</b>, blue ones away from it. They "
            f"sum to {change:+.2f}, the change of the label's logit against a text of padding · {took:.0f} ms"
        )
        return [prediction.scores, self._facts(prediction, started=None), words, f'<div class="note">{reason}</div>']

    def _facts(self, prediction: Prediction, started: float | None) -> str:
        facts = [] if started is None else [f"{(time.perf_counter() - started) * 1e3:.1f} ms"]
        if prediction.multi_label:
            facts.append("independent labels")
        if prediction.cut:
            facts.append(f"first {self._backend.get().token_limit} tokens used")
        return _note(" · ".join(facts))


def shown_words(explanation: Explanation) -> list[tuple[str, str | float | None]]:
    """The words with their contributions, scaled to -1 ... 1 so that the strongest gets full colour."""
    largest = max((abs(value) for _, value in explanation.pieces if value is not None), default=0.0) or 1.0
    return [(piece, None if value is None else round(value / largest, 3)) for piece, value in explanation.pieces]


def _note(text: str) -> str:
    return f'<div class="note">{html.escape(text)}</div>'
