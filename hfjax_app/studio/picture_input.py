"""Pictures that a page sends: uploaded files and painted masks become the backend's pictures and bytes."""

import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from hfjax_app.errors import RequestRejected
from hfjax_app.images.generation_parameters import GenerationParameters
from hfjax_app.images.interface import ImageFacts
from hfjax_app.images.request import MAX_SOFTNESS
from hfjax_app.limits import PICTURE_ID_CHARACTERS, PICTURES_SENT, PICTURES_SENT_BYTES
from hfjax_app.pictures import read_file, read_picture
from hfjax_app.runtime.seams.gradio import component_endpoint

WHITE = "#ffffff"
_KINDS = ("background", "layer", "composite")
_HOW = """<p>The picture is scaled and cut to the size. Paint over a part, and only that part is drawn anew: the rest
keeps its pixels and its resolution.</p>"""
_EDITED = """<p>This model changes the picture by words: the prompt says what should be different, such as "make the
boat red". The picture is scaled and cut to the size.</p>"""
# The browser's own field for a colour: it works by keyboard, and its value is always "#rrggbb".
_BACKGROUND = """<label><span>Background</span><span class="hint">Of what is transparent in it: white unless you pick
another colour.</span><input type="color" value="{{value}}"></label>"""
_BACKGROUND_JS = """
element.addEventListener('input', (event) => { props.value = event.target.value; });
watch('value', () => { element.querySelector('input').value = props.value; });
"""


class SentPictures:
    """Stores the parts of pictures that pages' editors send, until an event takes them. Thread-safe.

    It replaces Gradio's own storage, which deletes nothing and accepts any number of layers. A page sends a background,
    one painted layer, and both merged (composite); the composite is not stored. When a limit is reached, the oldest
    pictures are deleted.

    Args:
        most: how many pictures are stored.
        most_bytes: how many bytes they have together.
    """

    def __init__(self, most: int = PICTURES_SENT, most_bytes: int = PICTURES_SENT_BYTES):
        self._most, self._most_bytes = most, most_bytes
        self._sent: dict[str, dict[str, bytes]] = {}
        self._deleted: deque[str] = deque(maxlen=4 * most)
        self._bytes = 0
        self._lock = threading.Lock()

    @component_endpoint
    def accept(self, sent: Any) -> None:
        """Store a part. This is an endpoint of the editor; parts that no page of the studio sends are dropped."""
        data, files = getattr(sent, "data", None), getattr(sent, "files", None)
        if not isinstance(data, dict) or not files:
            return
        number, kind = data.get("id"), data.get("type")
        if not isinstance(number, str) or len(number) > PICTURE_ID_CHARACTERS or kind not in _KINDS:
            return
        if kind == "layer" and data.get("index") not in (0, "0"):
            return
        with self._lock:
            parts = self._sent.setdefault(number, {})
            if kind != "composite":
                content = files[0][1]
                self._bytes += len(content) - len(parts.get(kind, b""))
                parts[kind] = content
            while len(self._sent) > self._most or self._bytes > self._most_bytes:
                oldest = next(iter(self._sent))
                self._deleted.append(oldest)
                self._take(oldest)

    def take(self, number: str) -> tuple[bytes | None, bytes | None]:
        """Remove and return the (background, layer) of a picture; each is None if it was not sent.

        Args:
            number: the page's number for the picture.

        Raises:
            RequestRejected: the picture was deleted.
        """
        with self._lock:
            if number in self._deleted:
                raise RequestRejected("picture: it was sent too long ago and was deleted; ask once again")
            parts = self._take(number)
        return parts.get("background"), parts.get("layer")

    def _take(self, number: str) -> dict[str, bytes]:
        parts = self._sent.pop(number, {})
        self._bytes -= sum(map(len, parts.values()))
        return parts


class PictureInput:
    """A picture to start from, with a brush that paints the mask. Added to the surrounding blocks.

    Attributes:
        editor: the component. Its value arrives unprocessed, for `read`.
        components: the editor and the controls beside it, in the order that `arguments` takes their values.
        of_model: what depends on the model, in the order of `fitted`.
    """

    def __init__(self) -> None:
        with gr.Row(elem_id="source"):
            with gr.Column(elem_id="source-left"):
                self.editor = gr.ImageEditor(
                    label="Picture; paint over what should be drawn anew",
                    show_label=False,
                    format="png",
                    sources=("upload", "clipboard"),
                    brush=gr.Brush(colors=["#ffffff"], default_color="#ffffff", color_mode="fixed"),
                    layers=False,
                    transforms=(),
                    height=320,
                    elem_id="source-picture",
                )
                gr.HTML('<div class="note" id="source-note"></div>')  # pictures.js writes there
            with gr.Column(elem_id="source-right"):
                self._how = gr.HTML(_HOW, elem_id="source-how", apply_default_css=False)
                self.strength = gr.Slider(
                    0,
                    1,
                    0.8,
                    step=0.05,
                    label="Strength",
                    info="How much of it is replaced.",
                    elem_id="strength",
                    buttons=[],
                )
                self.background = gr.HTML(
                    WHITE,
                    html_template=_BACKGROUND,
                    js_on_load=_BACKGROUND_JS,
                    elem_id="background",
                    apply_default_css=False,
                )
                self.softness = gr.Slider(
                    0,
                    MAX_SOFTNESS,
                    1,
                    step=0.5,
                    label="Softness",
                    info="How wide the seam around a painted part is.",
                    elem_id="softness",
                    buttons=[],
                )
                self.marked = gr.Checkbox(False, label="Only the marked part, larger", elem_id="only-marked")
                self.expand = gr.Textbox(
                    "",
                    label="Larger canvas",
                    info="Pixels left, right, up, down that are drawn around the picture.",
                    placeholder="none, or such as 64, 64, 0, 0",
                    max_lines=1,
                    elem_id="expand",
                )
        self.components = (self.editor, self.strength, self.background, self.softness, self.marked, self.expand)
        self.of_model = (self._how, self.strength, self.softness, self.marked, self.expand)
        self._sent = SentPictures()
        self.editor.accept_blobs = self._sent.accept

    @staticmethod
    def fitted(facts: ImageFacts) -> list[dict[str, Any]]:
        """Updates of `of_model`. What a model can't do with a picture is hidden, with its value."""
        usual = not facts.edits
        shown = [gr.update(visible=usual), gr.update(visible=usual)]
        if usual:
            return [gr.update(value=_HOW), *shown, gr.update(visible=True), gr.update(visible=True)]
        emptied = [gr.update(value=False, visible=False), gr.update(value="", visible=False)]
        return [gr.update(value=_EDITED), *shown, *emptied]

    def arguments(self, values: Sequence[Any]) -> dict[str, Any]:
        """The options of an `ImageRequest` in the values of `components`, as the client sent them.

        Raises:
            RequestRejected: as `read`.
        """
        editor, strength, background, softness, marked, expand = values
        image, mask = self.read(editor)
        expand = expand.strip() if isinstance(expand, str) else expand
        return {
            "image": image,
            "mask": mask,
            "strength": strength,
            "background": background,
            "softness": softness,
            "region": "marked" if marked and (mask is not None or expand) else "whole",
            "expand": expand,
        }

    @staticmethod
    def reused(parameters: GenerationParameters) -> list[Any]:
        """Updates of `components` to a picture's parameters."""
        # a picture in the editor that does not belong to these parameters would be drawn into the next one
        return [
            gr.skip() if parameters.image else None,
            gr.skip() if (strength := parameters.values.get("strength")) is None else strength,
            parameters.values.get("background") or WHITE,
            gr.skip() if (softness := parameters.values.get("softness")) is None else softness,
            parameters.values.get("region") == "marked",
            parameters.values.get("expand") or "",
        ]

    def read(self, value: Any) -> tuple[Image.Image | None, Image.Image | None]:
        """(picture, mask) of the editor's value; each is None if it is missing.

        Raises:
            RequestRejected: see `hfjax_app/pictures.py`.
        """
        if not isinstance(value, dict):
            return None, None
        # the editor has uploaded the parts before, and sends their number
        if isinstance(value.get("id"), str):
            background, layer = self._sent.take(value["id"])
        else:
            background = _content(value.get("background"), "picture")
            layers = value.get("layers") or []
            if not isinstance(layers, list) or len(layers) > 1:
                raise RequestRejected("mask: must be one layer over the picture")
            layer = _content(layers[0], "mask") if layers else None
        if background is None:
            return None, None
        mask = None
        if layer is not None:
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


def _content(file: Any, what: str) -> bytes | None:
    """The content of a file; Gradio has checked that its path is in the upload folder."""
    path = file.get("path") if isinstance(file, dict) else None
    return read_file(Path(path), what) if isinstance(path, str) else None
