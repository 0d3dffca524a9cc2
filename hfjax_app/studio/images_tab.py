"""The images tab: draws pictures from a prompt, step by step, with a live preview that can be cancelled.

One event draws, whether a prompt was typed or variations of a picture are asked for. What the page does without the
model (the first screen's prompts, keys, shapes) is done by assets/images.js.

The generation parameters of a PNG file are copied into the controls, or replayed and verified.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing
from typing import Any

import gradio as gr
from gradio.events import Dependency
from PIL import Image

from hfjax_app.api.gradio_errors import streamed
from hfjax_app.api.images import EVENT
from hfjax_app.backends import Backend
from hfjax_app.client import sender
from hfjax_app.errors import HfjaxError, RequestRejected
from hfjax_app.images.generation_parameters import GenerationParameters, fitted, read_png
from hfjax_app.images.interface import ImageModel
from hfjax_app.images.request import ImageRequest
from hfjax_app.images.start_picture import digest
from hfjax_app.images.steps import ImageStep, Waiting
from hfjax_app.images.verification import Comparison, replay
from hfjax_app.limits import IMAGES_AT_ONCE
from hfjax_app.studio.files import PictureFiles
from hfjax_app.studio.image_settings import ImageSettings, shapes, size_names
from hfjax_app.studio.images_screen import FLIP, SETTINGS_TOP, ImageGallery, hello, length, note, progress, result
from hfjax_app.studio.model_picker import ModelLoader, ModelPicker
from hfjax_app.studio.picture_input import PictureInput, uploaded
from hfjax_app.studio.tab import UNPROCESSED, UNQUEUED, LoadingPanel, Shared, Tab, update_after

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


class ImagesTab(Tab):
    """Pictures from the text-to-image pipeline."""

    title, id = "Images", "images"

    def __init__(self, shared: Shared):
        self._service = shared.service.images
        self._files = PictureFiles(shared.files)
        backends = shared.backends
        self.loading = LoadingPanel(backends.image_models)
        with self.loading.panel, gr.Row(elem_id="images", equal_height=False):
            with gr.Column(elem_id="image-main"):
                with gr.Column(elem_id="image-box"):
                    self._build_box()
                self._message = gr.HTML("", elem_id="image-message", apply_default_css=False)
                with gr.Column(elem_id="canvas"):
                    self._build_canvas(backends.images)
                self.gallery = ImageGallery(self._files, self._picture, self._line)
            with gr.Column(elem_id="image-settings"):
                gr.HTML(SETTINGS_TOP, apply_default_css=False)
                self.picker: ModelPicker[ImageModel] = ModelPicker(backends.image_models, "image-model")
                with gr.Column(elem_classes="fields"):
                    self._settings = ImageSettings()
                with gr.Accordion("Settings inside a PNG", open=False, elem_id="recipe"):
                    self._parameters = ParametersPanel()
                ModelLoader(self.picker, shared.service.models, "images")
        self._listen()
        shown = [self._hello, self._shape, self._start_from, self._start, self._paint, self._settings.loras]
        self.picker.fill(self.loading, [*shown, *self._source.of_model], self._settings.of_model, self._of_model)

    def store(self, page: gr.Blocks) -> None:
        self.gallery.store(page)

    def _build_box(self) -> None:
        """Prompt, shapes, the picture to start from, Generate: first on the page, whatever its width."""
        self._prompt = gr.Textbox(
            "",
            label="Prompt",
            show_label=False,
            container=False,
            placeholder="Describe a picture",
            lines=1,
            max_lines=6,
            elem_id="prompt",
        )
        self._length = gr.HTML("", elem_id="prompt-length", apply_default_css=False)
        self._count = gr.Button("Count", elem_id="count-prompt")  # images.js clicks it when the typing pauses
        self._shape = gr.Radio([], label="Shape", show_label=False, container=False, visible=False, elem_id="shape")
        with gr.Accordion("Start from a picture", open=False, elem_id="start-from") as self._start_from:
            self._source = PictureInput()
        gr.HTML(FLIP, elem_id="image-flip", apply_default_css=False)
        self._button = gr.Button("Generate", variant="primary", elem_id="generate")
        self._cancel = gr.Button("Cancel", interactive=False, elem_id="cancel")

    def _build_canvas(self, backend: Backend[ImageModel]) -> None:
        self._hello = gr.HTML(hello(backend), elem_id="image-hello", apply_default_css=False)
        self._picture = gr.Image(
            label="Picture",
            show_label=False,
            format="png",
            interactive=False,
            height=None,
            buttons=["download", "fullscreen"],
            elem_id="picture",
            elem_classes="sharp",
        )
        self._line = gr.HTML("", elem_id="image-progress", apply_default_css=False)
        with gr.Row(elem_id="picture-actions"):
            self._again = gr.Button("Use its settings", size="sm", elem_id="again")
            self._start = gr.Button("Start from it", size="sm", elem_id="start-from-it")
            self._paint = gr.Button("Paint over it", size="sm", elem_id="paint-over")
            self._vary = gr.Button("Vary it", size="sm", elem_id="vary")

    def _listen(self) -> None:
        buttons = [self._button, self._parameters.verify, self._cancel]
        shown = [self._picture, self._line]
        settings = self._settings
        made = [settings.seed, settings.size, self._shape, *self.gallery.outputs]
        inputs = [
            self._prompt,
            self.picker.chosen,
            self.gallery.drawings,
            *self._source.components,
            *settings.components,
        ]
        outputs = [*shown, self._message, *made, *buttons]
        drawing = gr.on(
            [self._button.click, self._prompt.submit], self._generate, inputs, outputs, **UNPROCESSED, **EVENT
        )
        verifying = self._parameters.verify.click(
            self._verify,
            [self._parameters.file, self._source.editor, self.picker.chosen],
            [*shown, self._message, *buttons],
            **UNPROCESSED,
            **EVENT,
        )
        counting: dict[str, Any] = {
            "fn": self._counted,
            "inputs": [self._prompt, self.picker.chosen],
            "outputs": self._length,
        }
        self._count.click(**counting, trigger_mode="multiple", concurrency_limit=IMAGES_AT_ONCE, **UNPROCESSED)
        reused = [self._message, self._prompt, *self._source.components, *settings.components]
        for button, file in ((self._parameters.reuse, self._parameters.file), (self._again, self._picture)):
            button.click(
                self._reuse, [file, self.picker.chosen], reused, concurrency_limit=IMAGES_AT_ONCE, **UNPROCESSED
            ).success(**counting, concurrency_limit=IMAGES_AT_ONCE, **UNPROCESSED)
        of_picture = [self._picture, self._source.editor, self.picker.chosen]
        varying = self._vary.click(
            self._varied, of_picture, [*reused, settings.variations], concurrency_limit=IMAGES_AT_ONCE, **UNPROCESSED
        ).success(self._generate, inputs, outputs, **UNPROCESSED, **EVENT)
        for button, then in ((self._start, ""), (self._paint, "studio.images.paint();")):
            js = f"picture => {{ {then} return studio.images.toEditor(picture); }}"
            button.click(None, self._picture, [self._source.editor, self._start_from], js=js, **UNQUEUED)
        self._shape.input(None, self._shape, settings.size, js="shape => shape", **UNQUEUED)
        settings.size.change(None, settings.size, self._shape, js="size => size", **UNQUEUED)
        # A typed or pasted seed switches random seeds off. `input` does not report pasted ones; `change` also reports
        # seeds that the server has drawn, so the focus decides.
        is_random = "is_random => is_random && !document.activeElement.closest('#seed')"
        settings.seed.change(None, settings.is_random, settings.is_random, js=is_random, **UNQUEUED)
        for event in (drawing, varying, verifying):
            self._idle_after(event, buttons)
        # the note follows the cancellation, or a late step would overwrite it
        self._cancel.click(None, cancels=[drawing, varying, verifying], queue=False, api_visibility="private").then(
            lambda: [note("Cancelled."), *_idle()], None, [self._line, *buttons], **UNQUEUED
        )

    def _idle_after(self, event: Dependency, buttons: Sequence[gr.Button]) -> None:
        update_after(event, buttons, _idle())
        unfinished = "line => line?.includes('data-runs') ? studio.images.unfinished : line"  # not after Cancel
        event.failure(None, self._line, self._line, js=unfinished, **UNQUEUED)

    def _of_model(self, backend: Backend[ImageModel]) -> list[dict[str, Any]]:
        """What is to be known about the model, and values of controls that depend on it."""
        generator = backend.get()
        facts = generator.facts
        pictures = [gr.update(visible=facts.takes_picture)] * 2
        if facts.needs_picture:
            pictures[0] = gr.update(visible=True, open=True)
        pictures.append(gr.update(visible=facts.takes_picture and not facts.edits))  # to paint over
        loras = gr.update(visible=bool(facts.loras))
        source = self._source.fitted(facts)
        first = gr.update(value=hello(backend, changes=facts.needs_picture))
        shown = [first, shapes(generator), *pictures, loras, *source]
        return [*shown, *self._settings.fitted(generator)]

    @streamed
    async def _generate(
        self, prompt: Any, chosen: object, drawings: list[tuple[str, str]], *values: Any
    ) -> AsyncGenerator[list[Any], None]:
        backend = self.picker.model(chosen)
        generator = backend.get()
        source, settings = values[: len(self._source.components)], values[len(self._source.components) :]
        arguments = self._settings.arguments(settings, generator.facts)

        def begin() -> Generator[ImageStep | Waiting, None, None]:
            request = ImageRequest(prompt, **arguments, **self._source.arguments(source))
            return generator.generate(request, client=sender().id)

        same = [gr.skip()] * (3 + len(self.gallery.outputs))
        async with aclosing(self._shown(backend, begin)) as shown:
            async for picture, line, last, files in shown:
                if last is None:
                    yield [picture, line, "", *same, *_busy()]
                    continue
                captions = [f"{prompt} · seed {picture.seed}" for picture in last.pictures]
                sizes = gr.Dropdown(size_names(generator))  # includes a size that was compiled for this request
                gallery = self.gallery.with_new(zip(files, captions, strict=True), drawings)
                seed = str(last.pictures[0].seed)
                yield [picture, line, "", seed, sizes, shapes(generator), *gallery, *_busy()]

    async def _counted(self, prompt: Any, chosen: object) -> str:
        """The line that counts the prompt's tokens; empty where there is nothing to count."""
        if not isinstance(prompt, str) or not prompt.strip():
            return ""
        try:
            return length(await asyncio.to_thread(self.picker.model(chosen).get().length, prompt))
        except HfjaxError:  # the prompt is refused when it is drawn, or the model is not ready
            return ""

    @streamed
    async def _verify(self, file: Any, source: Any, chosen: object = "") -> AsyncGenerator[list[Any], None]:
        backend = self.picker.model(chosen)
        generator = backend.get()

        def begin() -> Generator[ImageStep | Waiting | Comparison, None, None]:
            return self._parameters.replay(generator, file, *self._source.read(source))

        async with aclosing(self._shown(backend, begin)) as shown:
            async for picture, line, _, _ in shown:
                yield [picture, line, "", *_busy()]

    @streamed
    async def _reuse(self, file: Any, chosen: object = "") -> AsyncGenerator[list[Any], None]:
        parameters = await self._read(file, chosen)
        hint = " It was started from a picture, which has to be uploaded again." if parameters.image else ""
        if parameters.left_out:
            hint += f" Not as in the file: {'; '.join(parameters.left_out)}."
        yield [
            note(f"The settings of the picture are in place.{hint}"),
            parameters.values["prompt"],
            *self._source.reused(parameters),
            *self._settings.reused(parameters.values, self.picker.model(chosen).get().facts),
        ]

    @streamed
    async def _varied(self, file: Any, source: Any, chosen: object) -> AsyncGenerator[list[Any], None]:
        """The settings of a picture for variations of it, which are drawn next."""
        parameters = await self._read(file, chosen)
        if parameters.image:
            image, mask = await self._service.read(self._source.read, source)
            # only new edges may have been drawn, without a mask of the visitor's
            same_mask = (mask is None) == (parameters.mask is None) or (
                mask is None and parameters.values.get("expand")
            )
            if digest(image) != parameters.image or not same_mask:
                raise RequestRejected("this picture was started from another one: put that one into the editor first")
        settings = self._settings.varied(parameters.values, self.picker.model(chosen).get().facts)
        changed = [*self._source.reused(parameters), *settings]
        yield [note("Variations of the picture."), parameters.values["prompt"], *changed, gr.Accordion(open=True)]

    async def _read(self, file: Any, chosen: object) -> GenerationParameters:
        return await self._service.read(self._parameters.read, self.picker.model(chosen).get(), file)

    async def _shown(
        self,
        backend: Backend[ImageModel],
        begin: Callable[[], Generator[ImageStep | Waiting | Comparison, None, None]],
    ) -> AsyncGenerator[tuple[Any, str, ImageStep | None, Sequence[str]], None]:
        """(picture, line below it, the last step or None, its pictures' files) for each step of a request.

        Args:
            backend: the model that draws.
            begin: checks the request and returns its generator of steps.
        """
        steps = await self._service.read(begin)
        async with aclosing(self._service.run(backend, self._files.of(steps))) as running:
            yield gr.skip(), note("Starting …", runs=True), None, ()
            async for step, sheet, files in running:
                if isinstance(step, Waiting):
                    yield gr.skip(), note(f"Waiting: {step.reason}.", runs=True), None, ()
                elif isinstance(step, Comparison):  # the last step has shown its picture
                    yield gr.skip(), note(step.summary, pictures=1), None, ()
                elif step.is_last:
                    yield sheet, result(step), step, files
                elif sheet is not None:
                    yield sheet, progress(step), None, ()


def _busy() -> list[gr.Button]:
    """The buttons Generate, Verify and Cancel while something runs."""
    return [gr.Button(interactive=False), gr.Button(interactive=False), gr.Button(interactive=True)]


def _idle() -> list[dict[str, Any]]:
    """The same buttons when nothing runs."""
    return [gr.update(interactive=True), gr.update(interactive=True), gr.update(interactive=False)]
