"""The images tab: draws pictures from a prompt, step by step, with a live preview that can be cancelled."""

import html
import math
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr
from gradio.processing_utils import save_bytes_to_cache, save_pil_to_cache
from PIL import Image

from hfjax_app.api.gradio_errors import streamed
from hfjax_app.api.images import EVENT, ImagesApi
from hfjax_app.api.models import ModelsApi
from hfjax_app.backends import Backend
from hfjax_app.client import sender
from hfjax_app.limits import GALLERY_PICTURES, IMAGES_AT_ONCE
from hfjax_app.studio.event_options import UNPROCESSED, UNQUEUED
from hfjax_app.studio.loading_panel import LoadingPanel
from hfjax_app.studio.model_loader import ModelLoader
from hfjax_app.studio.model_picker import ModelPicker
from hfjax_app.studio.parameters_panel import ParametersPanel
from hfjax_app.studio.picture_input import PictureInput, size_of
from hfjax_app.studio.seed import typed_seed
from hfjax_app.studio.session_storage import store
from hfjax_app.studio.tab import Shared, Tab
from hfjax_app.studio.updates import update_after

if TYPE_CHECKING:  # these modules import jax, and the page is served before that
    from hfjax_app.images.interface import ImageModel
    from hfjax_app.images.steps import ImageStep, Picture, Waiting
    from hfjax_app.images.verification import Comparison

SESSION_S = 4 * 3600
REDRAW_S = 0.1  # the least time between two previews on a page
RANDOM_SEEDS = 2**32  # few digits, so that a person can read a seed
EXAMPLES = [
    "a red circle on a white background",
    "a yellow star on a black background",
    "three orange circles on a blue background",
    "a small blue square",
    "a red boat on a lake",
    "a rainbow over green hills",
]


class ImagesTab(Tab):
    """Pictures from the text-to-image pipeline."""

    title, id = "Images", "images"

    def __init__(self, shared: Shared):
        self._files = shared.files
        self._api = shared.endpoints.of(ImagesApi)
        self.loading = LoadingPanel(shared.backends.image_models)
        with self.loading.panel:
            self.picker: ModelPicker[ImageModel] = ModelPicker(shared.backends.image_models, "image-model")
        with self.loading.panel, gr.Row(equal_height=False):
            with gr.Column(scale=3):
                self._build_controls()
            with gr.Column(scale=2):
                self._picture = gr.Image(
                    label="Picture",
                    show_label=False,
                    format="png",
                    interactive=False,
                    height=340,
                    buttons=["download", "fullscreen"],
                    elem_id="picture",
                    elem_classes="sharp",
                )
                self._progress_line = gr.HTML(note("The picture forms here, step by step."), elem_id="image-progress")
        with self.loading.panel:
            gr.Examples(EXAMPLES, self._prompt, label="Prompts", elem_id="image-examples", api_visibility="private")
            self._build_files()
            self._gallery = gr.Gallery(
                label="Pictures of this session",
                format="png",
                columns=6,
                height="auto",
                fit_columns=False,
                object_fit="contain",
                interactive=False,
                buttons=["download", "fullscreen"],
                visible=False,
                elem_id="gallery",
                elem_classes="sharp",
            )
            ModelLoader(self.picker, shared.endpoints.of(ModelsApi), "images")
        self._made = gr.State([], time_to_live=SESSION_S)
        self._listen()
        controls = [self._steps, self._guidance, self._scheduler, self._size]
        self.picker.fill(self.loading, [], controls, self._defaults)

    def store(self, page: gr.Blocks) -> None:
        """The gallery outlives a reload of the page."""
        paths = "pictures => pictures.map(({ image, caption }) => [image.path, caption])"
        store(page, self._gallery, self._restored, [self._gallery, self._made], stored_part=paths)

    def _build_controls(self) -> None:
        self._prompt = gr.Textbox(
            "", label="Prompt", placeholder="a red circle on a white background", lines=2, elem_id="prompt"
        )
        self._negative = gr.Textbox("", label="Negative prompt", placeholder="what to avoid", elem_id="negative-prompt")
        with gr.Row():
            self._steps = gr.Slider(1, 100, 20, step=1, label="Steps", elem_id="steps")
            self._guidance = gr.Slider(0, 20, 7.5, step=0.1, label="Guidance", elem_id="guidance")
        with gr.Row():
            self._scheduler = gr.Dropdown([], label="Scheduler", elem_id="scheduler", min_width=120)
            self._size = gr.Dropdown(
                [], label="Size", info="Or type another.", allow_custom_value=True, elem_id="size", min_width=120
            )
            self._count = gr.Slider(1, 4, 1, step=1, label="Pictures", elem_id="count", min_width=120)
        with gr.Group(), gr.Row(equal_height=True):
            self._seed = gr.Textbox("0", label="Seed", placeholder="random", max_lines=1, elem_id="seed")
            self._is_random = gr.Checkbox(True, label="Random seed", elem_id="random-seed")
        with gr.Row():
            self._button = gr.Button("Generate", variant="primary", elem_id="generate")
            self._cancel = gr.Button("Cancel", interactive=False, elem_id="cancel")

    def _build_files(self) -> None:
        """These controls are below the picture, so that on a narrow page the picture follows its button."""
        with gr.Accordion("Start from a picture", open=False, elem_id="start-from"):
            self._source = PictureInput()
            self._strength = gr.Slider(
                0, 1, 0.8, step=0.05, label="Strength", info="How much of it is replaced.", elem_id="strength"
            )
        with gr.Accordion("Settings inside a PNG", open=False, elem_id="recipe"):
            self._parameters = ParametersPanel()

    def _listen(self) -> None:
        shown = [self._picture, self._progress_line]
        buttons = [self._button, self._parameters.verify, self._cancel]
        inputs = [
            *(self._prompt, self._negative, self._steps, self._guidance, self._scheduler, self._size, self._count),
            *(self._seed, self._is_random, self._source.editor, self._strength, self._made, self.picker.chosen),
        ]
        drawing = gr.on(
            [self._button.click, self._prompt.submit],
            self._generate,
            inputs,
            [*shown, self._seed, self._size, self._gallery, self._made, *buttons],
            **UNPROCESSED,
            **EVENT,
        )
        verifying = self._parameters.verify.click(
            self._verify,
            [self._parameters.file, self._source.editor, self.picker.chosen],
            [*shown, *buttons],
            **UNPROCESSED,
            **EVENT,
        )
        settings = [
            *(self._prompt, self._negative, self._steps, self._guidance, self._scheduler, self._size, self._count),
            *(self._seed, self._is_random, self._source.editor, self._strength),
        ]
        self._parameters.reuse.click(
            self._reuse,
            [self._parameters.file, self.picker.chosen],
            [*settings, self._progress_line],
            concurrency_limit=IMAGES_AT_ONCE,
            **UNPROCESSED,
        )
        # A typed or pasted seed switches random seeds off. `input` does not report pasted ones; `change` also reports
        # seeds that the server has drawn, so the focus decides.
        is_random = "is_random => is_random && !document.activeElement.closest('#seed')"
        self._seed.change(None, self._is_random, self._is_random, js=is_random, **UNQUEUED)
        for event in (drawing, verifying):
            update_after(event, buttons, _idle())
        # the note follows the cancellation, or a late step would overwrite it
        self._cancel.click(None, cancels=[drawing, verifying], queue=False, api_visibility="private").then(
            lambda: [note("Cancelled."), *_idle()], None, [self._progress_line, *buttons], **UNQUEUED
        )

    def _defaults(self, backend: "Backend[ImageModel]") -> list[dict[str, Any]]:
        """Values of controls that depend on the loaded model."""
        generator = backend.get()
        sizes, names = _sizes(generator), list(generator.schedulers)
        return [
            gr.update(maximum=generator.max_steps, value=generator.recommended.steps),
            gr.update(value=generator.recommended.guidance_scale),
            gr.update(choices=names, value=names[0]),
            gr.update(choices=sizes, value=sizes[0]),
        ]

    def _restored(self, stored: object) -> list[Any]:
        """The gallery from before a reload, with the pictures that were made here and still exist."""
        made = []
        for entry in stored[:GALLERY_PICTURES] if isinstance(stored, list) else []:
            match entry:
                case [str(file), str(caption)] if file in self._files and Path(file).exists():
                    made.append((file, caption))
        return [gr.Gallery(made, visible=True), made] if made else [gr.skip(), gr.skip()]

    @streamed
    async def _generate(
        self,
        prompt: Any,
        negative: Any,
        steps: Any,
        guidance: Any,
        scheduler: Any,
        size: Any,
        count: Any,
        seed: Any,
        is_random: Any,
        source: Any,
        strength: Any,
        made: list[tuple[str, str]],
        chosen: object = "",
    ) -> AsyncGenerator[list[Any], None]:
        width, height = size_of(size)
        backend = self.picker.model(chosen)
        generator = backend.get()

        def begin() -> "Generator[ImageStep | Waiting, None, None]":
            image, mask = self._source.read(source)
            return generator.generate(
                prompt,
                client=sender().id,
                negative_prompt=negative,
                steps=steps,
                guidance_scale=guidance,
                seed=_chosen_seed(seed, is_random),
                images=count,
                width=width,
                height=height,
                scheduler=scheduler,
                image=image,
                mask=mask,
                strength=strength,
            )

        same = gr.skip()
        async with aclosing(self._shown(backend, begin)) as shown:
            async for picture, line, last, files in shown:
                if last is None:
                    yield [picture, line, same, same, same, same, *_busy()]
                    continue
                captions = [f"{prompt} · seed {picture.seed}" for picture in last.pictures]
                made = [*zip(files, captions, strict=True), *made][:GALLERY_PICTURES]
                sizes = gr.Dropdown(_sizes(generator))  # includes a size that was compiled for this request
                gallery = gr.Gallery(made, visible=True)
                yield [picture, line, str(last.pictures[0].seed), sizes, gallery, made, *_busy()]

    @streamed
    async def _verify(self, file: Any, source: Any, chosen: object = "") -> AsyncGenerator[list[Any], None]:
        backend = self.picker.model(chosen)
        generator = backend.get()

        def begin() -> "Generator[ImageStep | Waiting | Comparison, None, None]":
            return self._parameters.replay(generator, file, *self._source.read(source))

        async with aclosing(self._shown(backend, begin)) as shown:
            async for picture, line, _, _ in shown:
                yield [picture, line, *_busy()]

    @streamed
    async def _reuse(self, file: Any, chosen: object = "") -> AsyncGenerator[list[Any], None]:
        parameters = await self._api.read(self._parameters.read, self.picker.model(chosen).get(), file)
        size = f"{parameters.width} x {parameters.height}"
        # a picture in the editor that does not belong to these parameters would be drawn into the next one
        source = gr.skip() if parameters.image else None
        hint = " It was started from a picture, which has to be uploaded again." if parameters.image else ""
        if parameters.left_out:
            hint += f" Not as in the file: {'; '.join(parameters.left_out)}."
        seed, is_random = (gr.skip(), gr.skip()) if parameters.seed is None else (str(parameters.seed), False)
        yield [
            *(parameters.prompt, parameters.negative_prompt, _or_same(parameters.steps)),
            *(_or_same(parameters.guidance_scale), _or_same(parameters.scheduler), size, 1, seed, is_random, source),
            _or_same(parameters.strength),
            note(f"The settings of the picture are in place.{hint}"),
        ]

    async def _shown(
        self,
        backend: "Backend[ImageModel]",
        begin: "Callable[[], Generator[ImageStep | Waiting | Comparison, None, None]]",
    ) -> "AsyncGenerator[tuple[Any, str, ImageStep | None, Sequence[str]], None]":
        """(picture, line below it, the last step or None, its pictures' files) for each step of a request.

        Args:
            backend: the model that draws.
            begin: checks the request and returns its generator of steps.
        """
        from hfjax_app.images.steps import Waiting
        from hfjax_app.images.verification import Comparison

        steps = await self._api.read(begin)
        async with aclosing(self._api.run(backend, self._with_files(steps))) as running:
            yield gr.skip(), note("Starting …"), None, ()
            async for step, sheet, files in running:
                if isinstance(step, Waiting):
                    yield gr.skip(), note(f"Waiting: {step.reason}."), None, ()
                elif isinstance(step, Comparison):  # the last step has shown its picture
                    yield gr.skip(), note(step.summary), None, ()
                elif step.is_last:
                    seeds = ", ".join(str(picture.seed) for picture in step.pictures)
                    seconds = f"{step.seconds / step.steps:.2f} s each"
                    facts = [f"{step.steps} steps in {step.seconds:.1f} s, {seconds}", f"seed {seeds}", step.notice]
                    yield sheet, note(" · ".join(filter(None, facts))), step, files
                elif sheet is not None:
                    yield sheet, _progress(step), None, ()

    def _with_files(
        self, steps: "Generator[ImageStep | Waiting | Comparison, None, None]"
    ) -> "Generator[tuple[ImageStep | Waiting | Comparison, str | None, Sequence[str]], None, None]":
        """Each step with the file of its contact sheet and the files of finished pictures.

        The files are made in the thread that draws: previews need the device, and encoding PNG takes too long for the
        event loop, which serves all visitors. A step within REDRAW_S of the last shown one gets no sheet, because the
        previews of a fast model take longer than its steps.
        """
        from hfjax_app.images.steps import ImageStep

        shown_at = -math.inf
        with closing(steps):
            for step in steps:
                sheet: str | None = None
                files: list[str] = []
                if isinstance(step, ImageStep):
                    if step.is_last:
                        files = [self._saved(picture) for picture in step.pictures]
                    if len(files) == 1:
                        [sheet] = files  # the downloaded file then has its parameters inside
                    elif step.is_last or time.monotonic() >= shown_at + REDRAW_S:
                        sheet = self._saved_sheet(step)
                yield step, sheet, files
                if sheet is not None:
                    shown_at = time.monotonic()

    def _saved_sheet(self, step: "ImageStep") -> str:
        """The file of the step's contact sheet in Gradio's cache."""
        sheet = contact_sheet(step.previews)
        if step.is_last:  # like the Stable Diffusion web UI, with the parameters of the first picture
            sheet.info["parameters"] = step.pictures[0].parameters.text()
        path: str = save_pil_to_cache(sheet, self._picture.GRADIO_CACHE, format="png")
        if step.is_last:
            self._files.add(path)
        else:
            self._files.add_brief(path)
        return path

    def _saved(self, picture: "Picture") -> str:
        """The picture's PNG file, with its parameters inside, in Gradio's cache."""
        png = picture.png
        assert png is not None  # the last step's pictures have one
        name = f"{picture.parameters.scheduler}-{picture.seed}.png".replace(" ", "-").replace("+", "p")
        path: str = save_bytes_to_cache(png, name, self._gallery.GRADIO_CACHE)
        self._files.add(path)
        return path


def _chosen_seed(typed: object, is_random: object) -> Any:
    """The seed in its field, or a random one if the field is empty or random seeds are switched on."""
    seed = None if is_random else typed_seed(typed)
    return secrets.randbelow(RANDOM_SEEDS) if seed is None else seed


def _sizes(generator: "ImageModel") -> list[str]:
    return [f"{width} x {height}" for width, height in generator.offered_sizes]


def contact_sheet(previews: Sequence[Image.Image]) -> Image.Image:
    """One picture unchanged; several on one sheet, two in a row."""
    if len(previews) == 1:
        return previews[0]
    wide, tall = previews[0].size
    sheet = Image.new("RGB", (2 * wide, math.ceil(len(previews) / 2) * tall), "white")
    for i, picture in enumerate(previews):
        sheet.paste(picture, (i % 2 * wide, i // 2 * tall))
    return sheet


def _or_same(value: Any) -> Any:
    """A control's new value; the file may say none."""
    return gr.skip() if value is None else value


def note(text: str) -> str:
    return f'<div class="note">{html.escape(text)}</div>'


def _progress(step: "ImageStep") -> str:
    each = step.seconds / step.step
    left = f"{step.seconds_left:.0f} s left" if step.seconds_left >= 1 else "less than 1 s left"
    return (
        f'<div class="note"><progress value="{step.step}" max="{step.steps}"></progress>'
        f"step {step.step} of {step.steps} · {each:.2f} s a step · {left}</div>"
    )


def _busy() -> list[gr.Button]:
    """The buttons Generate, Verify and Cancel while something runs."""
    return [gr.Button(interactive=False), gr.Button(interactive=False), gr.Button(interactive=True)]


def _idle() -> list[dict[str, Any]]:
    """The same buttons when nothing runs."""
    return [gr.update(interactive=True), gr.update(interactive=True), gr.update(interactive=False)]
