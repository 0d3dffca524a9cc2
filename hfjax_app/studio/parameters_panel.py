"""A PNG file's generation parameters: copied into the tab's controls, or replayed and verified."""

from collections.abc import Generator
from typing import Any

import gradio as gr
from PIL import Image

from hfjax_app.client import sender
from hfjax_app.images.generation_parameters import GenerationParameters, fitted, read_png
from hfjax_app.images.interface import ImageModel
from hfjax_app.images.steps import ImageStep, Waiting
from hfjax_app.images.verification import Comparison, replay
from hfjax_app.studio.picture_input import uploaded

_HOW = """<p>Of a picture from here, a Stable Diffusion web UI, ComfyUI, Fooocus, InvokeAI, SwarmUI or NovelAI. A replay
draws it again and compares every pixel.</p>"""


class ParametersPanel:
    """A file and two buttons, added to the surrounding blocks. The values of files arrive unprocessed."""

    def __init__(self) -> None:
        gr.HTML(_HOW, elem_id="recipe-how", apply_default_css=False)
        self.file = gr.File(
            label="Picture with settings",
            show_label=False,
            file_types=[".png", ".jpg", ".jpeg", ".webp"],
            height=120,
            elem_id="recipe-file",
        )
        with gr.Row():
            self.reuse = gr.Button("Reuse these settings", elem_id="reuse")
            self.verify = gr.Button("Replay and verify", elem_id="verify")

    def read(self, generator: ImageModel, file: Any) -> GenerationParameters:
        """The generation parameters in the file, fitted to this model; `left_out` says what is not as in the file.

        Raises:
            RequestRejected: there are none.
        """
        _, parameters = read_png(uploaded(file))
        return fitted(parameters, generator.facts)

    def replay(
        self, generator: ImageModel, file: Any, image: Image.Image | None, mask: Image.Image | None
    ) -> Generator[ImageStep | Waiting | Comparison, None, None]:
        """The steps of drawing the file's picture again, and the result of the comparison.

        Raises:
            RequestRejected: as `hfjax_app.images.replay`.
        """
        return replay(generator, uploaded(file), image=image, mask=mask, client=sender().id)
