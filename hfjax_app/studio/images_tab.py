"""The images tab: a prompt becomes pictures, step by step, with a live preview that can be cancelled."""

import html
import math
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.processing_utils import save_bytes_to_cache, save_pil_to_cache
from PIL import Image

from hfjax_app.api.gradio_errors import streamed
from hfjax_app.api.images import EVENT, ImagesApi
from hfjax_app.limits import GALLERY_PICTURES, IMAGES_AT_ONCE
from hfjax_app.studio.loading_panel import LoadingPanel
from hfjax_app.studio.picture_input import PictureInput, size_of
from hfjax_app.studio.recipe_panel import RecipePanel
from hfjax_app.studio.seed import typed_seed
from hfjax_app.studio.session_storage import keep
from hfjax_app.studio.tab import Shared, Tab
from hfjax_app.studio.updates import afterwards

SESSION_S = 4 * 3600
REDRAW_S = 0.1  # at least, from one preview on a page to the next
RANDOM_SEEDS = 2**32  # short enough to read
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
        self._backend, self._files = shared.backends.images, shared.files
        self._api = shared.endpoints.of(ImagesApi)
        self.loading = LoadingPanel(self._backend)
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
        self._made = gr.State([], time_to_live=SESSION_S)
        self._listen()
        self.loading.fill([self._steps, self._guidance, self._scheduler, self._size], self._defaults)

    def keep(self, page: gr.Blocks) -> None:
        """The gallery outlives a reload of the page."""
        named = "pictures => pictures.map(({ image, caption }) => [image.path, caption])"
        keep(page, self._gallery, self._restored, [self._gallery, self._made], part=named)

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
        """Below the picture: on a narrow page it follows the button that it comes from."""
        with gr.Accordion("Start from a picture", open=False, elem_id="start-from"):
            self._source = PictureInput()
            self._strength = gr.Slider(
                0, 1, 0.8, step=0.05, label="Strength", info="How much of it is replaced.", elem_id="strength"
            )
        with gr.Accordion("Settings inside a PNG", open=False, elem_id="recipe"):
            self._recipe = RecipePanel()

    def _listen(self) -> None:
        shown = [self._picture, self._progress_line]
        buttons = [self._button, self._recipe.verify, self._cancel]
        inputs = [
            *(self._prompt, self._negative, self._steps, self._guidance, self._scheduler, self._size, self._count),
            *(self._seed, self._is_random, self._source.editor, self._strength, self._made),
        ]
        # preprocess=False: values arrive as the client sent them, and the backend judges them
        shared = {"preprocess": False, "show_progress": "hidden", "api_visibility": "private"}
        run = gr.on(
            [self._button.click, self._prompt.submit],
            self._generate,
            inputs,
            [*shown, self._seed, self._size, self._gallery, self._made, *buttons],
            **shared,
            **EVENT,
        )
        verify = self._recipe.verify.click(
            self._verify, [self._recipe.file, self._source.editor], [*shown, *buttons], **shared, **EVENT
        )
        settings = [
            *(self._prompt, self._negative, self._steps, self._guidance, self._scheduler, self._size, self._count),
            *(self._seed, self._is_random, self._source.editor, self._strength),
        ]
        self._recipe.reuse.click(
            self._reuse, self._recipe.file, [*settings, self._progress_line], **shared, concurrency_limit=IMAGES_AT_ONCE
        )
        at_once = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
        # who types or pastes one wants that; `input` hears of keys only, `change` also of seeds that were drawn
        wanted = "is_random => is_random && !document.activeElement.closest('#seed')"
        self._seed.change(None, self._is_random, self._is_random, js=wanted, **at_once)
        for event in (run, verify):
            afterwards(event, buttons, _idle())
        # the cancellation first, then its note, or a late step would overwrite that
        self._cancel.click(None, cancels=[run, verify], queue=False, api_visibility="private").then(
            lambda: [note("Cancelled."), *_idle()], None, [self._progress_line, *buttons], **at_once
        )

    def _defaults(self, generator: Any) -> list[Any]:
        """What only the loaded model knows."""
        sizes, names = _sizes(generator), list(generator.schedulers)
        return [
            gr.Slider(maximum=generator.max_steps, value=generator.recommended.steps),
            gr.Slider(value=generator.recommended.guidance_scale),
            gr.Dropdown(names, value=names[0]),
            gr.Dropdown(sizes, value=sizes[0]),
        ]

    def _restored(self, kept: object) -> list[Any]:
        """The gallery of before a reload, as far as its pictures are still there and were made here."""
        made = []
        for entry in kept[:GALLERY_PICTURES] if isinstance(kept, list) else []:
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
    ) -> AsyncGenerator[list[Any], None]:
        width, height = size_of(size)
        generator = self._backend.get()

        def begin() -> Iterator[Any]:
            image, mask = self._source.read(source)
            return generator.generate(
                prompt,
                negative_prompt=negative,
                steps=steps,
                guidance_scale=guidance,
                seed=_seed(seed, is_random),
                images=count,
                width=width,
                height=height,
                scheduler=scheduler,
                image=image,
                mask=mask,
                strength=strength,
            )

        same = gr.skip()
        async with aclosing(self._shown(begin)) as shown:
            async for picture, line, last, files in shown:
                if last is None:
                    yield [picture, line, same, same, same, same, *_busy()]
                    continue
                captions = [f"{prompt} · seed {picture.seed}" for picture in last.pictures]
                made = [*zip(files, captions, strict=True), *made][:GALLERY_PICTURES]
                sizes = gr.Dropdown(_sizes(generator))  # another size has become one of them
                gallery = gr.Gallery(made, visible=True)
                yield [picture, line, str(last.pictures[0].seed), sizes, gallery, made, *_busy()]

    @streamed
    async def _verify(self, file: Any, source: Any) -> AsyncGenerator[list[Any], None]:
        generator = self._backend.get()

        def begin() -> Iterator[Any]:
            return self._recipe.replayed(generator, file, *self._source.read(source))

        async with aclosing(self._shown(begin)) as shown:
            async for picture, line, _, _ in shown:
                yield [picture, line, *_busy()]

    @streamed
    async def _reuse(self, file: Any) -> AsyncGenerator[list[Any], None]:
        parameters = await self._api.read(self._recipe.settings, self._backend.get(), file)
        size = f"{parameters.width} x {parameters.height}"
        strength = gr.skip() if parameters.strength is None else parameters.strength
        source = (
            gr.skip() if parameters.image else None
        )  # what another picture was started from would be drawn into this one
        hint = " It was started from a picture, which has to be uploaded again." if parameters.image else ""
        yield [
            *(
                parameters.prompt,
                parameters.negative_prompt,
                parameters.steps,
                parameters.guidance_scale,
                parameters.scheduler,
                size,
                1,
            ),
            *(str(parameters.seed), False, source, strength, note(f"The settings of the picture are in place.{hint}")),
        ]

    async def _shown(
        self, begin: Callable[[], Iterator[Any]]
    ) -> AsyncGenerator[tuple[Any, Any, Any, Sequence[str]], None]:
        """(picture, line below it, the last step or None, its pictures' files) for each moment of the generator that
        `begin` makes of what was sent.
        """
        moments = await self._api.read(begin)
        async with aclosing(self._api.run(self._with_files(moments))) as running:
            yield gr.skip(), note("Starting …"), None, ()
            async for moment, sheet, files in running:
                if reason := getattr(moment, "reason", None):
                    yield gr.skip(), note(f"Waiting: {reason}."), None, ()
                elif summary := getattr(moment, "summary", None):  # its picture was the last step's
                    yield gr.skip(), note(summary), None, ()
                elif moment.is_last:
                    seeds = ", ".join(str(picture.seed) for picture in moment.pictures)
                    seconds = f"{moment.seconds / moment.steps:.2f} s each"
                    facts = [
                        f"{moment.steps} steps in {moment.seconds:.1f} s, {seconds}",
                        f"seed {seeds}",
                        moment.notice,
                    ]
                    yield sheet, note(" · ".join(filter(None, facts))), moment, files
                elif sheet is not None:
                    yield sheet, _progress(moment), None, ()

    def _with_files(self, moments: Iterator[Any]) -> Iterator[tuple[Any, str | None, Sequence[str]]]:
        """Each moment with its contact sheet's file and those of finished pictures, made in the thread that draws:
        previews take a turn on the device, and to write PNG takes long for the thread that serves everybody.

        Steps that come soon after one that is shown get none: to draw each of a fast model takes longer than making it.
        """
        shown_at = -math.inf
        with closing(moments):
            for moment in moments:
                is_last = getattr(moment, "is_last", None)
                files = [self._saved(picture) for picture in moment.pictures] if is_last else []
                sheet = None
                if len(files) == 1:
                    [sheet] = files  # so that what is downloaded has its parameters inside
                elif is_last or (is_last is False and time.monotonic() >= shown_at + REDRAW_S):
                    overview = contact_sheet(moment.previews)
                    if is_last:  # as the web UI has it: the settings of the first picture
                        overview.info["parameters"] = moment.pictures[0].parameters.text()
                    sheet = save_pil_to_cache(overview, self._picture.GRADIO_CACHE, format="png")
                    keep = self._files.add if is_last else self._files.add_brief
                    keep(sheet)
                yield moment, sheet, files
                if sheet is not None:
                    shown_at = time.monotonic()

    def _saved(self, picture: Any) -> str:
        """The picture's PNG file, with its parameters inside, in Gradio's cache."""
        name = f"{picture.parameters.scheduler}-{picture.seed}.png".replace(" ", "-").replace("+", "p")
        path = save_bytes_to_cache(picture.png, name, self._gallery.GRADIO_CACHE)
        self._files.add(path)
        return path


def _seed(typed: object, is_random: object) -> object:
    """The number in the seed's field, or a random one where it is empty or random ones are wanted."""
    seed = None if is_random else typed_seed(typed)
    return secrets.randbelow(RANDOM_SEEDS) if seed is None else seed


def _sizes(generator: Any) -> list[str]:
    return [f"{width} x {height}" for width, height in generator.warm_sizes]


def contact_sheet(previews: Sequence[Image.Image]) -> Image.Image:
    """One picture as it is, several on one sheet, two in a row."""
    if len(previews) == 1:
        return previews[0]
    wide, tall = previews[0].size
    sheet = Image.new("RGB", (2 * wide, math.ceil(len(previews) / 2) * tall), "white")
    for i, picture in enumerate(previews):
        sheet.paste(picture, (i % 2 * wide, i // 2 * tall))
    return sheet


def note(text: str) -> str:
    return f'<div class="note">{html.escape(text)}</div>'


def _progress(step: Any) -> str:
    each = step.seconds / step.step
    left = f"{step.seconds_left:.0f} s left" if step.seconds_left >= 1 else "less than 1 s left"
    return (
        f'<div class="note"><progress value="{step.step}" max="{step.steps}"></progress>'
        f"step {step.step} of {step.steps} · {each:.2f} s a step · {left}</div>"
    )


def _busy() -> list[gr.Button]:
    """Generate, Verify and Cancel while something runs."""
    return [gr.Button(interactive=False), gr.Button(interactive=False), gr.Button(interactive=True)]


def _idle() -> list[dict[str, Any]]:
    return [gr.update(interactive=True), gr.update(interactive=True), gr.update(interactive=False)]
