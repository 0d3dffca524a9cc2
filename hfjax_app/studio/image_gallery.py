"""The pictures of a visit: thumbnails that open in the large frame, and all of them as a zip file."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gradio as gr
from gradio.components import Component

from hfjax_app.api.gradio_errors import errors_shown
from hfjax_app.errors import RequestRejected
from hfjax_app.limits import GALLERY_PICTURES, IMAGES_AT_ONCE
from hfjax_app.runtime.seams.gradio import details_of
from hfjax_app.studio.images_screen import GALLERY_HEAD, note
from hfjax_app.studio.picture_files import PictureFiles
from hfjax_app.studio.tab import UNPROCESSED, UNQUEUED, UNQUEUED_UNPROCESSED

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
