"""The panel in which the operator loads another model of a tab's kind, and unloads the picked one."""

import html
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import gradio as gr

from hfjax_app.api.gradio_errors import errors_shown, streamed
from hfjax_app.api.models import EVENT, LOAD_EVENT
from hfjax_app.backends.model_loads import Load
from hfjax_app.service.models import ModelsService
from hfjax_app.studio.model_picker import ModelPicker
from hfjax_app.studio.tab import UNPROCESSED


class ModelLoader:
    """Builds its components and events in the surrounding gr.Blocks; nothing where no key opens it.

    Args:
        picker: of the same models; lists what is loaded here.
        api: loads.
        kind: "chat" or "images".
    """

    def __init__(self, picker: ModelPicker[Any], service: ModelsService, kind: str):
        self._picker, self._service, self._kind = picker, service, kind
        if not service.is_open:
            return
        with gr.Accordion("Load another model", open=False, elem_id=f"{kind}-loader"):
            gr.HTML(
                '<div class="note">For the operator of this server: a hub id or a folder of it is checked, downloaded '
                "and warmed up beside the models that serve. The key was printed when the server started, or was set "
                "there.</div>"
            )
            with gr.Row():
                model = gr.Textbox("", label="Model", placeholder="owner/name, or a whole path", max_lines=1)
                key = gr.Textbox("", label="Operator's key", type="password", max_lines=1)
            with gr.Row():
                load = gr.Button("Load", variant="primary")
                cancel = gr.Button("Cancel the load")
                unload = gr.Button("Unload the picked model")
            status = gr.HTML(_note("Nothing is loaded at the moment."))
        shown = [status, picker.list]
        gr.on([load.click, model.submit], self._load, [model, key], shown, **UNPROCESSED, **LOAD_EVENT)
        cancel.click(self._cancel, key, status, **UNPROCESSED, **EVENT)
        unload.click(self._unload, [picker.chosen, key], shown, **UNPROCESSED, **EVENT)

    @streamed
    async def _load(self, model: object, key: object) -> AsyncGenerator[list[Any], None]:
        load = self._service.begin(model, key, self._kind)
        async with aclosing(self._service.watched(load)) as lines:
            async for line in lines:
                yield [_progress(load, line), self._picker.refreshed()]

    def _cancel(self, key: object) -> str:
        with errors_shown():
            self._service.cancel(key)
            return _note("The load is being cancelled.")

    async def _unload(self, chosen: object, key: object) -> list[Any]:
        with errors_shown():
            name = self._picker.model(chosen).name
            await self._service.unload(name, key, self._kind)
            return [_note(f"{name} was unloaded."), self._picker.refreshed()]


def _note(text: str) -> str:
    return f'<div class="note" role="status">{html.escape(text)}</div>'


def _progress(load: Load, line: str) -> str:
    if load.error is None and not load.is_done:
        share = load.backend.share_done
        value = "" if share is None else f' value="{share:.3f}"'
        bar = f'<progress aria-label="load of {html.escape(load.backend.name)}"{value}></progress>'
        return f'<div class="note"><span role="status">{html.escape(line)}</span>{bar}</div>'
    return _note(f"{load.backend.name}: {line}")
