"""The list from which a visitor picks the model of a tab.

A native select, so that keyboards and screen readers know it. Models that warm up are in it and can't be chosen. The
choice outlives a reload; model_picker.js is the browser's part. Beside it: where a model's
card is, and the panel in which the operator loads another model of the tab's kind, and unloads the picked one.
"""

import html
import json
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Generic, TypeVar

import gradio as gr
from gradio.components import Component
from markdown_it import MarkdownIt

from hfjax_app.api.gradio_errors import errors_shown, streamed
from hfjax_app.api.models import EVENT, LOAD_EVENT
from hfjax_app.backends import Backend
from hfjax_app.backends.backend import Models
from hfjax_app.backends.model_loads import Load
from hfjax_app.embedded import MODELS, resolve
from hfjax_app.service.service import ModelsService
from hfjax_app.studio.tab import UNPROCESSED, UNQUEUED, UNQUEUED_UNPROCESSED, LoadingPanel
from hfjax_app.studio.theme import ASSETS

T = TypeVar("T")

POLL_S = 2.0
_SCRIPT = (ASSETS / "model_picker.js").read_text(encoding="utf-8")


class ModelPicker(Generic[T]):
    """Builds its components in the surrounding gr.Blocks.

    Args:
        models: to pick from.
        elem_id: unique on the page; the browser keeps the choice under this name.

    Attributes:
        list: the component that shows it.
        chosen: the name of the picked model, a value for events; empty while the page has none.
    """

    def __init__(self, models: Models[T], elem_id: str):
        self._models, self._id = models, elem_id
        self.chosen = gr.Textbox("", visible=False)
        self.list = gr.HTML(
            self._html(),
            elem_id=elem_id,
            elem_classes="model-picker",
            js_on_load=_SCRIPT,
            storage=elem_id,
            apply_default_css=False,
        )
        self._timer = gr.Timer(POLL_S, active=False)
        self._follows = False  # whether something shown changes while programs join
        self.list.focus(self._refresh, None, [self.list, self._timer], **UNQUEUED)
        self._js = f"document.querySelector('#{elem_id} select').value"  # also before `chosen` has it
        self.list.input(None, None, self.chosen, js=f"() => {self._js}", **UNQUEUED)

    def model(self, chosen: object) -> Backend[T]:
        """The picked model.

        Args:
            chosen: the value of `chosen`, as a client sent it.

        Raises:
            NotFound: it was unloaded meanwhile; the message lists the others.
        """
        return self._models.find(chosen) if isinstance(chosen, str) and chosen else self._models.usable

    def fill(
        self,
        loading: LoadingPanel[T],
        shown: Sequence[Component],
        controls: Sequence[Component],
        values: Callable[[Backend[T]], list[dict[str, Any]]],
        live: Component | None = None,
    ) -> None:
        """Give components values that depend on the model: when the panel opens, and when another model is picked.

        Args:
            loading: the tab's panel.
            shown: follow each model.
            controls: follow where the visitor has not changed them, or can't see them any more.
            values: takes the backend of a ready model, and returns what `gr.update` gives for each of `shown` and
                `controls`.
            live: one of `shown` whose value also changes while programs join the model.
        """
        self._follows = live is not None
        filled = gr.Textbox("", visible=False)  # the values of `controls` as the last model has them, JSON
        outputs = [self.list, self._timer, filled, *shown, *controls]

        def of_model(backend: Backend[T]) -> list[Any]:
            updates = values(backend)
            return [*self._refresh(), _as_json(updates[len(shown) :]), *updates]

        def picked(chosen: object, before: object, *current: object) -> list[Any]:
            with errors_shown():
                listed, timer, now, *updates = of_model(self.model(chosen))
            for update, value, old in zip(updates[len(shown) :], current, _read(before), strict=False):
                is_kept = value in update.get("choices", [value]) and update.get("visible", True)
                if value != old and is_kept:
                    del update["value"]
            return [listed, timer, now, *updates]

        def ticked(chosen: object) -> list[Any]:
            if live is None:
                return self._refresh()
            backend = next((each for each in self._models if each.name == chosen), None)
            if backend is None or backend.state != "ready":
                return [*self._refresh(), gr.skip()]
            return [*self._refresh(), values(backend)[shown.index(live)]]

        self._timer.tick(ticked, self.chosen, [self.list, self._timer, *([] if live is None else [live])], **UNQUEUED)
        loading.fill(outputs, lambda _: of_model(loading.backend))
        inputs, js = [self.chosen, filled, *controls], f"(_, ...others) => [{self._js}, ...others]"
        self.list.select(picked, inputs, outputs, js=js, **UNQUEUED_UNPROCESSED)

    def refreshed(self) -> dict[str, Any]:
        """An update of `list`."""
        return gr.update(value=self._html())

    def _refresh(self) -> list[Any]:
        done = all(backend.is_complete if self._follows else backend.is_settled for backend in self._models)
        return [self.refreshed(), gr.Timer(active=not done)]

    def _html(self) -> str:
        options = "".join(map(_option, self._models))
        label = f'<label class="sr" for="{self._id}-list">Model</label>'
        if len(self._models) > 1:
            return f'{label}<select id="{self._id}-list">{options}</select>'
        name = html.escape(self._models.first.name)
        return f'<span class="model">{name}</span><select id="{self._id}-list" hidden>{options}</select>'


def _option(backend: Backend[Any]) -> str:
    name = html.escape(backend.name)
    match backend.state:
        case "ready":
            return f'<option value="{name}">{name}</option>'
        case "failed":
            doing = "can't be used"
        case _:
            doing = "warming up"
    progress = html.escape(backend.progress)
    return f'<option value="{name}" title="{progress}" disabled>{name} ({doing})</option>'


def _as_json(updates: Sequence[dict[str, Any]]) -> str:
    return json.dumps([update["value"] for update in updates])


def _read(filled: object) -> list[object]:
    """What `_as_json` has made, as the browser sends it back; [] for anything else."""
    try:
        values = json.loads(filled) if isinstance(filled, str) else []
    except ValueError:
        return []
    return values if isinstance(values, list) else []


_HUB_ID = re.compile(r"([\w.-]+/[\w.-]+)(@[\w./-]+)?")
_HEADING = re.compile(r"(</?h)([1-4])>")


def model_card(backend: Backend[Any], sheet_id: str) -> tuple[str, str]:
    """A link to the card, and the sheet that it opens; both empty for a folder.

    Args:
        backend: its model is an embedded model's name, a folder, or a hub id.
        sheet_id: unique on the page.
    """
    if backend.model not in MODELS:
        found = _HUB_ID.fullmatch(backend.model)
        if found is None or Path(backend.model).exists():
            return "", ""
        address = f"https://huggingface.co/{found[1]}"
        return f'<a class="link" href="{address}" target="_blank" rel="noreferrer">Its model card</a>', ""
    text = (Path(resolve(backend.model)) / "README.md").read_text(encoding="utf-8")
    card = _HEADING.sub(_lower, MarkdownIt("commonmark").enable("table").render(text.split("---", 2)[2]))
    return (
        f'<button type="button" class="link" popovertarget="{sheet_id}">Its model card</button>',
        f'<div class="sheet" id="{sheet_id}" popover>{card}</div>',
    )


def _lower(heading: re.Match[str]) -> str:
    """A heading of the card as one below the page's own."""
    return f"{heading[1]}{int(heading[2]) + 1}>"


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
        loads = [load.click, model.submit]  # a click that comes while one runs is told so, not dropped
        gr.on(loads, self._load, [model, key], shown, trigger_mode="multiple", **UNPROCESSED, **LOAD_EVENT)
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
