"""What a page sends of a picture, as the backend's pictures and bytes: uploaded files, painted masks, data URLs."""

from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from hfjax_app.errors import RequestRejected


class PictureInput:
    """A picture to start from, with a brush that paints where to draw. Added to the surrounding blocks.

    `editor` is the component; its value arrives unprocessed, for `read`.
    """

    def __init__(self) -> None:
        self.editor = gr.ImageEditor(
            label="Picture; paint over what should be drawn anew",
            format="png",
            sources=("upload", "clipboard"),
            brush=gr.Brush(colors=["#ffffff"], default_color="#ffffff", color_mode="fixed"),
            layers=False,
            transforms=(),
            height=340,
            elem_id="source-picture",
        )

    def read(self, value: Any) -> tuple[Image.Image | None, Image.Image | None]:
        """(picture, mask) of the editor's value; each None where there is none.

        Raises:
            RequestRejected: see `uploads.py`.
        """
        from hfjax_app.images.uploads import read_picture

        if not isinstance(value, dict):
            return None, None
        # the editor uploads its parts beforehand, and sends their number
        parts = self.editor.blob_storage.pop(value["id"], None) if isinstance(value.get("id"), str) else None
        if parts is not None:
            background, layers = parts.background, parts.layers
        else:
            background = _content(value.get("background"), "picture")
            layers = [_content(layer, "mask") for layer in value.get("layers") or []]
        if background is None:
            return None, None
        mask = None
        for layer in filter(None, layers):
            painted = read_picture(layer, "mask").convert("RGBA").getchannel("A")
            if painted.getbbox():
                mask = painted.point(lambda alpha: 255 if alpha >= 128 else 0)
        return read_picture(background, "picture"), mask


def uploaded(value: Any) -> bytes:
    """The content of a gr.File's value.

    Raises:
        RequestRejected: nothing was uploaded, or it is too large.
    """
    content = _content(value, "picture")
    if content is None:
        raise RequestRejected("no file: upload a PNG picture first")
    return content


def size_of(text: Any) -> tuple[Any, Any]:
    """(width, height) of text such as "64 x 64"; whatever else it is, for the backend to judge."""
    parts = [part.strip() for part in str(text).lower().replace("×", "x").split("x")]
    if len(parts) != 2:
        return text, text
    return tuple(int(part) if part.isdecimal() and len(part) < 8 else part for part in parts)


def _content(file: Any, what: str) -> bytes | None:
    """Gradio has made sure that the path is one of its uploads."""
    from hfjax_app.images.uploads import read_file

    path = file.get("path") if isinstance(file, dict) else None
    return read_file(Path(path), what) if isinstance(path, str) else None
