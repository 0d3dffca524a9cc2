"""The images tab: a prompt becomes a picture, step by step, with a live preview that can be cancelled."""

import asyncio
import base64
import html
import io
import secrets
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

import gradio as gr
from gradio.processing_utils import save_pil_to_cache

from hfjax_app.backends import Backend
from hfjax_app.embedded import MODELS
from hfjax_app.studio.refusal import streamed
from hfjax_app.studio.status import Gate

GALLERY_LIMIT = 24
SESSION_S = 4 * 3600
RANDOM_SEEDS = 2**32  # short enough to read and to pass through a browser's numbers
EXAMPLES = [
    "a red circle on a white background",
    "a yellow star on a black background",
    "three orange circles on a blue background",
    "a small blue square",
    "a red boat on a lake",
    "a rainbow over green hills",
]
_RUN = {"concurrency_id": "images", "concurrency_limit": 8}  # visitors alternate step by step


async def stepped(steps: Iterator[Any]) -> AsyncGenerator[Any, None]:
    """Run a blocking iterator's steps in a thread, one by one, and close it whatever happens.

    A thread can't be interrupted: when this generator is closed or cancelled in the middle of a step, the iterator is
    closed as soon as that step is over, so no further step is computed.
    """
    step: asyncio.Task[Any] | None = None
    try:
        while True:
            step = asyncio.create_task(asyncio.to_thread(next, steps, None))
            item = await asyncio.shield(step)
            if item is None:
                return
            yield item
    finally:
        if step is None or step.done():
            steps.close()
        else:
            step.add_done_callback(lambda done: (done.exception(), steps.close()))


class ImagesTab:
    """Builds the tab's components and events in the surrounding gr.Blocks."""

    def __init__(self, backend: Backend):
        self._backend = backend
        self.gate = Gate(backend)
        with self.gate.panel, gr.Row(equal_height=False):
            with gr.Column(scale=3):
                prompt = gr.Textbox(
                    "", label="Prompt", placeholder="a red circle on a white background", lines=2, elem_id="prompt"
                )
                negative = gr.Textbox(
                    "", label="Negative prompt", placeholder="what to avoid", elem_id="negative-prompt"
                )
                with gr.Row():
                    steps = gr.Slider(1, 100, 20, step=1, label="Steps", elem_id="steps")
                    guidance = gr.Slider(
                        1, 20, _usual_guidance(backend.model), step=0.1, label="Guidance", elem_id="guidance"
                    )
                with gr.Group(), gr.Row(equal_height=True):
                    seed = gr.Number(0, label="Seed", precision=0, minimum=0, elem_id="seed")
                    is_random = gr.Checkbox(True, label="Random seed", elem_id="random-seed")
                with gr.Row():
                    button = gr.Button("Generate", variant="primary", elem_id="generate")
                    cancel = gr.Button("Cancel", interactive=False, elem_id="cancel")
            with gr.Column(scale=2):
                picture = gr.Image(
                    label="Picture",
                    show_label=False,
                    format="png",
                    interactive=False,
                    height=340,
                    buttons=["download", "fullscreen"],
                    elem_id="picture",
                    elem_classes="sharp",
                )
                progress = gr.HTML(self._note("The picture forms here, step by step."), elem_id="image-progress")
        with self.gate.panel:
            gr.Examples(EXAMPLES, prompt, label="Prompts", elem_id="image-examples", api_visibility="private")
            gallery = gr.Gallery(
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
        self._cache = gallery.GRADIO_CACHE
        made = gr.State([], time_to_live=SESSION_S)
        outputs = [picture, progress, seed, gallery, made, button, cancel]
        inputs = [prompt, negative, steps, guidance, seed, is_random, made]
        # preprocess=False: values arrive as the client sent them, and the backend judges them
        shared = {"preprocess": False, "show_progress": "hidden", "api_visibility": "private", **_RUN}
        run = gr.on([button.click, prompt.submit], self._generate, inputs, outputs, **shared)
        at_once = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
        run.then(_idle, None, [button, cancel], **at_once)
        # the cancellation first, then its note, or a late step would overwrite that
        cancel.click(None, cancels=run, queue=False, api_visibility="private").then(
            lambda: [self._note("Cancelled."), *_idle()], None, [progress, button, cancel], **at_once
        )
        gr.api(self.generate, api_name="generate", **_RUN)

    @streamed
    async def _generate(
        self,
        prompt: object,
        negative: object,
        steps: object,
        guidance: object,
        seed: object,
        is_random: object,
        made: list[tuple[str, str]],
    ) -> AsyncGenerator[list[Any], None]:
        if is_random:
            seed = secrets.randbelow(RANDOM_SEEDS)
        running = [gr.Button(interactive=False), gr.Button(interactive=True)]
        same = gr.skip()
        async with aclosing(stepped(self._steps(prompt, negative, steps, guidance, seed))) as moments:
            yield [same, self._note("Starting …"), same, same, same, *running]
            async for step in moments:
                if step.image is None:
                    yield [step.preview, self._progress(step), same, same, same, same, same]
                    continue
                caption = f"{prompt} · seed {step.seed}"
                made = [(self._saved(step.image), caption), *made][:GALLERY_LIMIT]
                facts = [f"{step.steps} steps in {step.seconds:.1f} s", f"seed {step.seed}", step.notice]
                note = self._note(" · ".join(filter(None, facts)))
                yield [step.image, note, step.seed, gr.Gallery(made, visible=True), made, same, same]

    @streamed
    async def generate(
        self,
        prompt: str,
        negative_prompt: str = "",
        steps: int = 20,
        guidance_scale: float = 7.5,
        seed: int | None = None,
    ) -> dict[str, Any]:
        """A picture as {"image": PNG data URL, "seed": the seed used, "notice": such as a prompt that was
        cut, or null}; each step before the last one streams {"step", "steps"}."""
        async with aclosing(stepped(self._steps(prompt, negative_prompt, steps, guidance_scale, seed))) as moments:
            async for step in moments:
                if step.image is None:
                    yield {"step": step.step, "steps": step.steps}
                else:
                    png = io.BytesIO()
                    step.image.save(png, "png")
                    url = f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}"
                    yield {"image": url, "seed": step.seed, "notice": step.notice}

    def _steps(self, prompt: object, negative: object, steps: object, guidance: object, seed: object) -> Iterator[Any]:
        return self._backend.get().generate(
            prompt, negative_prompt=negative, steps=steps, guidance_scale=guidance, seed=seed
        )

    def _saved(self, image: Any) -> str:
        """The picture's file in Gradio's cache, so that the gallery never encodes it again."""
        return save_pil_to_cache(image, self._cache, format="png")

    @staticmethod
    def _note(text: str) -> str:
        return f'<div class="note">{html.escape(text)}</div>'

    @staticmethod
    def _progress(step: Any) -> str:
        return (
            f'<div class="note"><progress value="{step.step}" max="{step.steps}"></progress>'
            f"step {step.step} of {step.steps} · {step.seconds:.1f} s</div>"
        )


def _idle() -> list[gr.Button]:
    """Generate and Cancel when nothing runs."""
    return [gr.Button(interactive=True), gr.Button(interactive=False)]


def _usual_guidance(model: str) -> float:
    """Where the slider starts: the embedded model's colours are harsh at the guidance that suits large ones."""
    return 4.0 if model in MODELS else 7.5
