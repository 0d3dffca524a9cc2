"""The sentiment tab: one text, many texts, and zero-shot classification with the visitor's own labels."""

from collections.abc import Sequence
from html import escape

import gradio as gr

from hfjax_app.backends import Backend
from hfjax_app.embedded import MODELS
from hfjax_app.sentiment.interface import SentimentModel
from hfjax_app.studio.loading_panel import LoadingPanel
from hfjax_app.studio.many_texts import ManyTexts
from hfjax_app.studio.model_card import model_card
from hfjax_app.studio.one_text import OneText
from hfjax_app.studio.tab import Shared, Tab
from hfjax_app.studio.zero_shot import ZeroShotPanel

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
