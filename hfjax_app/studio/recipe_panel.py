"""A PNG file's settings: taken over into the tab, or replayed and verified."""

from collections.abc import Iterator
from typing import Any

import gradio as gr
from PIL import Image

from hfjax_app.studio.picture_input import uploaded


class RecipePanel:
    """A file and two buttons, added to the surrounding blocks. The file's value arrives unprocessed."""

    def __init__(self) -> None:
        self.file = gr.File(
            label="A picture from here, or from a Stable Diffusion web UI",
            file_types=[".png"],
            height=110,
            elem_id="recipe-file",
        )
        with gr.Row():
            self.reuse = gr.Button("Reuse these settings", elem_id="reuse")
            self.verify = gr.Button("Replay and verify", elem_id="verify")

    def settings(self, generator: Any, file: Any) -> Any:
        """The parameters in the file.

        Raises:
            RequestRejected: there is none, or this model can't draw from it.
        """
        from hfjax_app.images.generation_parameters import read_png

        _, parameters = read_png(uploaded(file))
        generator.generate(**parameters.arguments()).close()  # checks, and draws nothing
        return parameters

    def replayed(self, generator: Any, file: Any, image: Image.Image | None, mask: Image.Image | None) -> Iterator[Any]:
        """The steps of drawing the file's picture again, and the comparison."""
        from hfjax_app.images import replay

        return replay(generator, uploaded(file), image=image, mask=mask)
