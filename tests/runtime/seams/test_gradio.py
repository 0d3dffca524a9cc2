"""Gradio's private parts are there, and what is changed is still needed."""

import asyncio
import contextlib
import importlib.metadata
import importlib.util
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from fastapi import FastAPI
from gradio import processing_utils, route_utils, routes, state_holder, utils
from gradio.brotli_middleware import BrotliMiddleware
from gradio.context import LocalContext
from gradio.queueing import Event, Queue
from gradio.route_utils import FileUploadProgress
from gradio.routes import templates
from gradio.utils import set_task_name

from hfjax_app.runtime.seams import gradio as seam
from hfjax_app.studio.event_queue import FairQueue
from hfjax_app.studio.page import QUEUE_POLL_S
from hfjax_app.studio.page_states import PageStates
from tests.runtime.seams.checks import Checks

check = Checks(seam)


def as_it_is(module: ModuleType) -> ModuleType:
    """A new import of a module, without the changes of this process."""
    spec = importlib.util.spec_from_file_location(f"{module.__name__}_as_it_is", module.__file__)
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


async def page_of(*names: str) -> gr.Blocks:
    """A page with endpoints, each a separate kind. Asynchronous, because outside a loop Gradio leaves a loop open."""

    async def answer() -> str:
        return ""

    with gr.Blocks() as page:
        for name in names:
            gr.api(answer, api_name=name, concurrency_id=name)
    return page


@check("classes of the page")
def _page_classes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = {name: vars(seam)[name] for name in ("App", "BlockFunction", "Event", "Queue", "StateHolder")}
    assert {name: kind.__module__.partition(".")[0] for name, kind in found.items()} == dict.fromkeys(found, "gradio")


@check("methods of the queue")
def _queue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ours = {"start", "close", "push", "get_events", "process_events", "remove_from_queue", "clean_events"}
    ours |= {"send_message", "start_processing", "start_progress_updates", "compute_analytics_summary"}
    assert ours <= vars(Queue).keys() & vars(FairQueue).keys()
    fields = {"event_queue_per_concurrency_id", "event_ids_to_events", "active_jobs", "stopped"}
    fields |= {"pending_messages_per_session", "pending_event_ids_session"}
    assert fields <= vars(asyncio.run(page_of("any"))._queue).keys()


@check("states of pages")
def _states(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    theirs = state_holder.StateHolder
    assert {"__init__", "__getitem__", "set_blocks"} <= vars(theirs).keys() & vars(PageStates).keys()
    assert {"session_data", "time_last_used"} <= vars(theirs()).keys()


@check("numbers of events")
def _numbers_of_events(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = asyncio.run(page_of("any"))
    [fn] = page.fns.values()
    assert page.fns[seam.id_of(fn)] is fn
    event = Event("session", fn, SimpleNamespace(), None)
    assert isinstance(seam.id_of(event), str)

    async def cancelled() -> bool:
        task = asyncio.create_task(asyncio.sleep(60))
        set_task_name(task, "session", seam.id_of(fn), "event", False)
        await seam.cancel_running("session", fn)
        return task.cancelled()

    assert asyncio.run(cancelled())


@check("details of events")
def _details(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert seam.details_of(gr.EventData(None, {"index": 1})) == {"index": 1}


@check("light sessions")
def _light_sessions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def state_of(make: Callable[..., Any]) -> dict[str, Any]:
        with gr.Blocks() as page:
            gr.Textbox("")
        made = object.__new__(state_holder.SessionState)
        make(made, page)
        return vars(made)

    usual = asyncio.run(state_of(as_it_is(state_holder).SessionState.__init__))
    light = asyncio.run(state_of(seam._light))
    assert usual.keys() == light.keys(), "nothing else reads a state's fields"
    assert usual["config_values"]
    assert not light["config_values"]


@check("no look for matplotlib")
def _matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    looks = "class MatplotlibBackendMananger:\n    def __enter__(self):\n        try:\n            import matplotlib\n"
    assert looks in inspect.getsource(utils)
    assert "with utils.MatplotlibBackendMananger():" in inspect.getsource(route_utils)


@check("the progress of uploads")
def _uploads_progress(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    progress = FileUploadProgress()
    assert progress._statuses == {}

    async def named() -> int:
        for number in range(300):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0):
                    await progress.is_tracked(str(number))
        return len(progress._signals)

    assert asyncio.run(named()) > 0
    assert "file_upload_statuses.is_done(" in inspect.getsource(routes)


@check("a user who is known")
def _known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def made() -> routes.App:
        return routes.App.create_app(await page_of("any"))

    app = asyncio.run(made())
    cookie = seam.known_user(app).decode()
    name, _, token = cookie.partition("=")
    assert app.tokens[token] == ""
    assert 'f"access-token-unsecure-{app.cookie_id}"' in inspect.getsource(routes)
    assert name == f"access-token-unsecure-{app.cookie_id}"


@check("the login of a Space")
def _space(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from gradio import oauth

    source = inspect.getsource(oauth.attach_oauth)
    assert '(OAUTH_CLIENT_SECRET or "") + "-v4"' in source
    assert "hashlib.sha256(session_secret.encode()).hexdigest()" in source


@check("no downloads")
def _downloads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    async def download(url: str, cache_dir: str) -> str:
        asked.append(url)
        return str(tmp_path / "file")

    async def take() -> None:
        with gr.Blocks():
            await gr.File().async_move_resource_to_block_cache("http://example.invalid/large")

    monkeypatch.setattr(processing_utils, "async_ssrf_protected_download", download)
    asyncio.run(take())
    assert asked == ["http://example.invalid/large"]


@check("nothing kept for links")
def _links(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def kept() -> list[dict[str, Any]]:
        with gr.Blocks() as page:
            text = gr.Textbox("")
        state = as_it_is(state_holder).SessionState(page)
        state._update_value_in_config(text._id, "what was sent")
        return [*state.components]

    assert "what was sent" in str(asyncio.run(kept()))
    assert "state._update_value_in_config(" in inspect.getsource(gr.Blocks)


@check("only uploaded files")
def _uploads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def mounted() -> gr.Blocks:
        page = await page_of("any")
        gr.mount_gradio_app(FastAPI(), page, path="/", ssr_mode=False)
        return page

    page = asyncio.run(mounted())
    token = LocalContext.blocks.set(page)
    try:
        processing_utils._check_allowed("/etc/passwd", True)  # it is no upload, and is allowed
        page.has_launched = True
        with pytest.raises(processing_utils.InvalidPathError):
            processing_utils._check_allowed("/etc/passwd", True)
    finally:
        LocalContext.blocks.reset(token)


@check("a waiting line for each kind")
def _lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def push() -> tuple[bool, Any, str]:
        page = await page_of("full", "other")
        page.queue(max_size=1)
        full, other = page.fns.values()
        page._queue.create_event_queue_for_fn(full)
        page._queue.event_queue_per_concurrency_id["full"].queue.append(SimpleNamespace())
        return await Queue.push(page._queue, SimpleNamespace(fn_index=other._id), None, None)

    _, _, status = asyncio.run(push())
    assert status == "queue_full"


@check("a queue that rests")
def _rests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def pause() -> float:
        page = await page_of("any")
        return page.queue()._queue.sleep_when_free

    assert asyncio.run(pause()) < QUEUE_POLL_S
    assert "asyncio.sleep(self.sleep_when_free)" in inspect.getsource(Queue)


@check("limits of a mounted page")
def _limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = {"max_threads", "state_session_capacity"}
    assert not names & {*inspect.signature(gr.mount_gradio_app).parameters}
    assert names <= {*inspect.signature(gr.Blocks.launch).parameters}
    page = asyncio.run(page_of("any"))
    assert names <= {*vars(page)}


@check("scripts first")
def _scripts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source, _, _ = templates.env.loader.get_source(templates.env, "frontend/index.html")
    assert source.count("<head>") == 1
    assert 0 < source.index('<script type="module"') < source.index("</head>")


def asset(*words: str, pattern: str) -> bool:
    """Whether one of the page's files contains all of these words."""
    folder = Path(gr.__file__).parent / "templates" / "frontend" / "assets"
    return any(all(word in path.read_text() for word in words) for path in folder.glob(pattern))


@check("a compressed page")
def _compressed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gradios = BrotliMiddleware(lambda *_: None)
    assert [gradios._is_compressible_file_type({"path": path}) for path in ("/", "/a.js")] == [False, True]


@check("closed tabs")
def _closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def shown() -> Any:
        with gr.Blocks() as page, gr.Tabs():
            gr.Tab("open")
            with gr.Tab("closed"):
                gr.HTML("any")
        [html] = [each for each in page.config["components"] if each["type"] == "html"]
        return html["props"].get("visible", True)

    assert asyncio.run(shown()) is True


@check("a chosen theme")
def _theme(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert asset("prefers-color-scheme", "__theme", pattern="*.js")


@check("keys of tabs")
def _keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert asset('role="tablist"', pattern="*.js")
    assert not asset('role="tablist"', "ArrowRight", pattern="*.js")


@check("under messages")
def _messages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert asset('role="log"', 'aria-live="polite"', "message-row", pattern="*.js")


@check("emptied numbers")
def _numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert asset("range_id_", "Math.min(Math.max(", pattern="Index-*.js")


@check("frames")
def _frames(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert asset("requestAnimationFrame", pattern="statustracker-*.js")


@check("smaller pictures")
def _smaller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert asset("createImageBitmap", "accept_blobs", pattern="Index-*.js")


@check("pictures that are forgotten")
def _forgotten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def sent() -> int:
        with gr.Blocks():
            editor = gr.ImageEditor()
        for number in range(300):
            data = {"id": str(number), "type": "background", "index": None}
            editor.accept_blobs(SimpleNamespace(data=data, files=[("file", b"a picture")]))
        return len(editor.blob_storage)

    assert asyncio.run(sent()) == 300


@check("made files")
def _made_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files: set[str] = set()
    for name in "ab":
        (tmp_path / name).touch()
        files.add(str(tmp_path / name))
    remove = os.remove
    monkeypatch.setattr(os, "remove", lambda path: (remove(path), files.add(f"{path}-made")))
    with pytest.raises(RuntimeError, match="changed size"):
        route_utils.delete_files_created_by_app(SimpleNamespace(blocks={}, temp_file_sets=[files]), None)


test_it_is_there_and_still_needed = check.test()
