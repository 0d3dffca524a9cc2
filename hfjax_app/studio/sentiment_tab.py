"""The sentiment tab: one text, many texts, and zero-shot classification with the visitor's own labels."""

import html
import json
import time
from collections.abc import Sequence
from html import escape
from typing import Any

import gradio as gr

from hfjax_app.api.gradio_errors import errors_shown
from hfjax_app.api.sentiment import EVENT, ZERO_SHOT_EVENT
from hfjax_app.backends import Backend
from hfjax_app.embedded import MODELS
from hfjax_app.errors import ModelUnavailable, RequestRejected, without_folders
from hfjax_app.runtime.seams.gradio import details_of
from hfjax_app.sentiment import Prediction
from hfjax_app.sentiment.interface import SentimentModel
from hfjax_app.service.sentiment import SentimentService
from hfjax_app.studio.label_drawing import FAILED, no_scores, scores, why
from hfjax_app.studio.list_words import SAYS
from hfjax_app.studio.many_texts import ManyTexts
from hfjax_app.studio.model_picker import model_card
from hfjax_app.studio.tab import UNPROCESSED, UNQUEUED, LoadingPanel, Shared, Tab, update_after_failure

_EMBEDDED = "a demo model of 1.9&nbsp;million parameters, made for this app, that reads English sentences"
_OTHER = "unchanged PyTorch code, compiled before you came"
_NAMED_LABELS = 6  # a model with more is introduced by their number


class SentimentTab(Tab):
    """Texts for the classifier, and texts with the visitor's own labels for the chat model."""

    title, id = "Sentiment", "sentiment"

    def __init__(self, shared: Shared):
        api, chat = shared.service.sentiment, shared.backends.chat
        self._backend = backend = shared.backends.sentiment
        self.loading = LoadingPanel(shared.backends.sentiment_models)
        with self.loading.panel:
            head = gr.HTML(elem_id="sentiment-head", apply_default_css=False)
            with gr.Tabs(elem_id="sentiment-kinds"):
                with gr.Tab("One text", id="one-text"):
                    one = OneText(backend, api)
                with gr.Tab("Many texts", id="many-texts"):
                    ManyTexts(backend, shared.files)
                with gr.Tab("Your own labels", id="own-labels"):
                    ZeroShotPanel(chat, api)
        self.loading.fill([head, one.result], lambda model: [gr.HTML(_head(backend, model)), *one.filled(model)])


def _head(backend: Backend[SentimentModel], model: SentimentModel) -> str:
    """What the tab does, which model does it, and its labels."""
    link, sheet = model_card(backend, "sentiment-model-card")
    what = _EMBEDDED if backend.model in MODELS else _OTHER
    who = f"<b>{escape(backend.name)}</b> judges: {what}. {_labels(model.labels)} {link}"
    return f"<h2>Sentiment</h2><p>How a text sounds, and which words make it so. {who}</p>{sheet}"


def _labels(labels: Sequence[str]) -> str:
    if len(labels) > _NAMED_LABELS:
        return f"It has {len(labels)} labels."
    *others, last = map(escape, labels)
    return f"Its labels: {', '.join(others)}{' and ' if others else ''}{last}."


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


LABELLED = [
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
                    examples = [gr.Button(example[0], elem_classes="gallery-item") for example in LABELLED]
            with gr.Column(scale=2, elem_classes="card"):
                result = gr.HTML(_nothing_yet(backend), elem_id="own-result", js_on_load=SAYS, apply_default_css=False)
        classify, inputs, outputs = self._classify, [text, labels], [result]
        asked = [
            gr.on(
                [button.click, text.submit, labels.submit], classify, inputs, outputs, **UNPROCESSED, **ZERO_SHOT_EVENT
            ),
        ]
        for example, values in zip(examples, LABELLED, strict=True):
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
