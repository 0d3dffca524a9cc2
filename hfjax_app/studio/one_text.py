"""One text: the probabilities of all labels, and the contribution of each word."""

import time
from html import escape
from typing import Any

import gradio as gr

from hfjax_app.api.gradio_errors import errors_shown
from hfjax_app.api.sentiment import EVENT
from hfjax_app.backends import Backend
from hfjax_app.errors import ModelUnavailable, without_folders
from hfjax_app.runtime.seams.gradio import details_of
from hfjax_app.sentiment import Prediction
from hfjax_app.sentiment.interface import SentimentModel
from hfjax_app.service.sentiment import SentimentService
from hfjax_app.studio.event_options import UNPROCESSED
from hfjax_app.studio.label_drawing import FAILED, no_scores, scores
from hfjax_app.studio.spoken import SAYS
from hfjax_app.studio.updates import update_after_failure
from hfjax_app.studio.word_drawing import why

EXAMPLES = [
    "I loved every minute of it.",
    "The soup was cold and the waiter never came back.",
    "The train leaves at nine.",
    "A great cast, but a dull story.",
    "Not bad at all!",
]
_NOTHING_YET = "Type a text or take an example: how likely each label is stands here."
_HINT = '<p class="note">A label above, or <b>Why?</b>, shows which words speak for it and which against.</p>'
_CLOSE_CALL = 0.15  # between the two likeliest labels
# A click on a label asks for its words.
_ASKS = """element.addEventListener('click', (event) => {
  const asked = event.target.closest('[data-label]');
  if (asked) trigger('select', { label: asked.dataset.label });
});"""


class OneText:
    """Builds its components and events in the surrounding gr.Blocks."""

    def __init__(self, backend: Backend[SentimentModel], service: SentimentService):
        self._backend, self._service = backend, service
        with gr.Row(equal_height=True, elem_classes="pair"):
            with gr.Column(scale=3, elem_classes="card"):
                text = gr.Textbox(
                    "",
                    label="Text",
                    placeholder="How does this sentence feel?",
                    lines=1,  # so Enter classifies, as it sends in the chat; the style makes it higher
                    max_lines=12,
                    elem_id="sentiment-text",
                )
                with gr.Row(elem_classes="actions"):
                    button = gr.Button("Classify", variant="primary", elem_id="classify")
                    reason = gr.Button("Why?", elem_id="why")
                examples = gr.Examples(
                    EXAMPLES, text, label="Try one", elem_id="sentiment-examples", api_visibility="private"
                )
            with gr.Column(scale=2, elem_classes="card"):
                self.result = gr.HTML(elem_id="sentiment-result", js_on_load=_ASKS + SAYS, apply_default_css=False)
        with gr.Column(elem_classes="card"):
            words = gr.HTML(_HINT, elem_id="sentiment-words", js_on_load=SAYS, apply_default_css=False)
        outputs = [self.result, words]
        asked = [
            gr.on([button.click, text.submit], self._classify, [text], outputs, **UNPROCESSED, **EVENT),
            examples.load_input_event.then(self._classify, [text], outputs, **UNPROCESSED, **EVENT),
            reason.click(self._why, [text], outputs, **UNPROCESSED, **EVENT),
            self.result.select(self._why_label, [text], outputs, **UNPROCESSED, **EVENT),
        ]
        for event in asked:
            update_after_failure(event, outputs, [gr.update(value=FAILED), gr.update(value=_HINT)])

    def filled(self, model: SentimentModel) -> list[Any]:
        """The value of `result` when the model is ready."""
        return [gr.HTML(no_scores(model.labels, _NOTHING_YET))]

    async def _classify(self, text: object) -> list[Any]:
        with errors_shown():
            started = time.perf_counter()
            prediction = await self._service.predict(text)
            note = self._facts(prediction, (time.perf_counter() - started) * 1e3)
            return [scores(prediction.scores, said=prediction.labels, note=note, asks=True), _HINT]

    async def _why(self, text: object) -> list[Any]:
        return await self._explained(text, None)

    async def _why_label(self, text: object, event: gr.EventData) -> list[Any]:
        asked = details_of(event)
        return await self._explained(text, asked.get("label") if isinstance(asked, dict) else None)

    async def _explained(self, text: object, label: object) -> list[Any]:
        with errors_shown():
            started = time.perf_counter()
            prediction = await self._service.predict(text)
            note = self._facts(prediction, (time.perf_counter() - started) * 1e3)
            try:
                explanation = await self._service.explanation(text, label)
            except ModelUnavailable as error:
                said = without_folders(str(error))
                result = scores(prediction.scores, said=prediction.labels, note=note, asks=True)
                return [result, f'<p class="note" data-say="{escape(said)}">{escape(said)}</p>']
            result = scores(
                prediction.scores, said=prediction.labels, note=note, explained=explanation.label, asks=True
            )
            return [result, why(explanation)]

    def _facts(self, prediction: Prediction, milliseconds: float) -> str:
        facts = []
        if prediction.multi_label:
            facts.append("independent labels")
        elif is_close(prediction):
            facts.append("a close call")
        if prediction.cut:
            facts.append(f"first {self._backend.get().token_limit} tokens used")
        return " · ".join([*facts, f"{milliseconds:.1f} ms"])


def is_close(prediction: Prediction) -> bool:
    """Whether the second label is nearly as likely as the first."""
    first, second, *_ = [*sorted(prediction.scores.values(), reverse=True), 0.0]
    return first - second < _CLOSE_CALL
