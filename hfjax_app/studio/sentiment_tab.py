"""The sentiment tab: one text, many texts, and zero-shot classification with the visitor's own labels."""

import gradio as gr

from hfjax_app.api.sentiment import SentimentApi
from hfjax_app.studio.loading_panel import LoadingPanel
from hfjax_app.studio.many_texts import ManyTexts
from hfjax_app.studio.one_text import OneText
from hfjax_app.studio.tab import Shared, Tab
from hfjax_app.studio.zero_shot import ZeroShotPanel


class SentimentTab(Tab):
    """Texts for the classifier, and texts with the visitor's own labels for the chat model."""

    title, id = "Sentiment", "sentiment"

    def __init__(self, shared: Shared):
        api, backend, chat = shared.endpoints.of(SentimentApi), shared.backends.sentiment, shared.backends.chat
        self.loading = LoadingPanel(shared.backends.sentiment_models)
        with self.loading.panel, gr.Tabs():
            with gr.Tab("One text", id="one-text"):
                OneText(backend, api)
            with gr.Tab("Many texts", id="many-texts"):
                ManyTexts(backend, shared.files)
            with gr.Tab("Your own labels", id="own-labels"):
                ZeroShotPanel(chat, api)
