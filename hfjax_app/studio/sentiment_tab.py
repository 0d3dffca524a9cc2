"""The sentiment tab: one text, many, or one with labels of the visitor's own."""

import gradio as gr

from hfjax_app.api.sentiment import SentimentApi
from hfjax_app.backends import Backend
from hfjax_app.studio.files import MadeFiles
from hfjax_app.studio.many_texts import ManyTexts
from hfjax_app.studio.one_text import OneText
from hfjax_app.studio.own_labels import OwnLabels
from hfjax_app.studio.status import Gate


class SentimentTab:
    """Builds the tab's components and events in the surrounding gr.Blocks.

    Args:
        backend: the classifier.
        chat: judges labels of the visitor's own.
        api: asks both.
        files: those that are made for visitors.
    """

    def __init__(self, backend: Backend, chat: Backend, api: SentimentApi, files: MadeFiles):
        self.gate = Gate(backend)
        with self.gate.panel, gr.Tabs():
            with gr.Tab("One text", id="one-text"):
                OneText(backend, api)
            with gr.Tab("Many texts", id="many-texts"):
                ManyTexts(backend, files)
            with gr.Tab("Your own labels", id="own-labels"):
                OwnLabels(chat, api)
