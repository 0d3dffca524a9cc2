"""Gradio: the classes of its queue, its protocol and its page, and what is closed, replaced or added in them.

The studio and the server import Gradio's undocumented classes from here. Those that a release has moved raise `Moved`
when the page is built with them.
"""

import asyncio
import hashlib
import os
import secrets
from collections import deque
from contextlib import nullcontext
from copy import copy
from typing import TYPE_CHECKING, Any

import gradio as gr

from hfjax_app.limits import UPLOADS_WATCHED
from hfjax_app.runtime.seams import Seam, missing, moved, needed, replace

if TYPE_CHECKING:
    from gradio.block_function import BlockFunction
    from gradio.blocks import Block, BlockContext
    from gradio.components.base import server as component_endpoint
    from gradio.data_classes import PredictBodyInternal
    from gradio.processing_utils import check_all_files_in_cache, save_bytes_to_cache, save_pil_to_cache
    from gradio.queueing import Event, EventQueue, Queue
    from gradio.route_utils import (
        FileUploadProgress,
        FileUploadProgressTracker,
        call_process_api,
        compile_gr_request,
    )
    from gradio.routes import App
    from gradio.server_messages import (
        CloseStreamMessage,
        EventMessage,
        HeartbeatMessage,
        ProcessCompletedMessage,
        ProcessGeneratingMessage,
    )
    from gradio.state_holder import SessionState, StateHolder
    from gradio.utils import get_upload_folder
else:
    BlockFunction = needed("gradio.block_function:BlockFunction")
    Block, BlockContext = (needed(f"gradio.blocks:{name}") for name in ("Block", "BlockContext"))
    component_endpoint = needed("gradio.components.base:server")
    PredictBodyInternal = needed("gradio.data_classes:PredictBodyInternal")
    check_all_files_in_cache, save_bytes_to_cache, save_pil_to_cache = (
        needed(f"gradio.processing_utils:{name}")
        for name in ("check_all_files_in_cache", "save_bytes_to_cache", "save_pil_to_cache")
    )
    Event, EventQueue, Queue = (needed(f"gradio.queueing:{name}") for name in ("Event", "EventQueue", "Queue"))
    FileUploadProgress, FileUploadProgressTracker, call_process_api, compile_gr_request = (
        needed(f"gradio.route_utils:{name}")
        for name in ("FileUploadProgress", "FileUploadProgressTracker", "call_process_api", "compile_gr_request")
    )
    App = needed("gradio.routes:App")
    CloseStreamMessage, EventMessage, HeartbeatMessage, ProcessCompletedMessage, ProcessGeneratingMessage = (
        needed(f"gradio.server_messages:{name}Message")
        for name in ("CloseStream", "Event", "Heartbeat", "ProcessCompleted", "ProcessGenerating")
    )
    SessionState, StateHolder = (needed(f"gradio.state_holder:{name}") for name in ("SessionState", "StateHolder"))
    get_upload_folder = needed("gradio.utils:get_upload_folder")

VERSIONS = {"gradio": "6.31.0"}
SEAMS = (
    Seam(
        name="classes of the page",
        what="the undocumented classes and functions above, by which the studio has its own queue and protocol",
        without="the page can't be built; the error names the release of Gradio to install",
    ),
    Seam(
        name="methods of the queue",
        what="the methods of queueing.Queue that FairQueue overrides, and the fields that it reads",
        without="what is overridden is not called: the queue is Gradio's own, which one client can fill or stop",
        file="studio/event_queue.py",
    ),
    Seam(
        name="states of pages",
        what="the methods and fields of state_holder.StateHolder that PageStates overrides and reads",
        without="a state is made for each call of the API, and the oldest page of all clients is forgotten",
        file="studio/page_states.py",
    ),
    Seam(
        name="numbers of events",
        what="`_id` of events and of the functions of a page, and the names of the tasks that run them",
        without="events can't be told apart or cancelled",
    ),
    Seam(
        name="details of events",
        what="`_data` of gr.EventData",
        without="buttons under messages, thumbnails and labels do nothing when they are clicked",
    ),
    Seam(
        name="no downloads",
        what="processing_utils.async_ssrf_protected_download raises an error",
        without="a URL in place of a file is downloaded into memory",
    ),
    Seam(
        name="nothing kept for links",
        what="SessionState._update_value_in_config does nothing",
        without="the last values of each session are stored, 16 MB each, for links to a page's values",
    ),
    Seam(
        name="light sessions",
        what="SessionState.__init__ makes no copy of the configuration of every component",
        without="a new page takes 10 ms of the event loop; only links need the copy",
    ),
    Seam(
        name="no look for matplotlib",
        what="utils.MatplotlibBackendMananger does nothing",
        without="Gradio looks for matplotlib on disk around each item of a stream: a third of a busy event loop's time",
    ),
    Seam(
        name="the progress of uploads",
        what="routes.file_upload_statuses, with `_statuses` of FileUploadProgress",
        without="something is kept for each id that a client has named; any number of streams look 20 times a second",
    ),
    Seam(
        name="only uploaded files",
        what="Blocks.has_launched of a mounted page",
        without="access to files is checked only on pages that were launched",
    ),
    Seam(
        name="a waiting line for each kind",
        what="the class of Blocks._queue",
        without="the queue counts the events of all kinds together, so one kind can fill it for all",
    ),
    Seam(
        name="a queue that rests",
        what="Blocks._queue.sleep_when_free",
        without="the queue polls every millisecond, which takes a fourteenth of a core",
    ),
    Seam(
        name="a user who is known",
        what="`tokens` and `cookie_id` of Gradio's app, and the name of its cookie",
        without="visitors who have logged in see Gradio's own login page",
    ),
    Seam(
        name="the login of a Space",
        what="oauth.attach_oauth, and how it makes the secret of its session cookie",
        without="a Space with a login does not start, or does not recognise who is logged in",
    ),
    Seam(
        name="scripts first",
        what="routes.templates: an extension of its environment puts our scripts and styles first",
        without="the contents of `head` come after Gradio's modules, which save references to the browser's functions",
    ),
    Seam(
        name="limits of a mounted page",
        what="Blocks.max_threads and Blocks.state_session_capacity",
        without="only `launch` has these arguments, and the page is mounted",
        file="studio/page.py",
    ),
    Seam(
        name="a compressed page",
        what="the page itself is compressed",
        without="only answers to addresses with an extension are",
        file="server/gradio_routes.py",
    ),
    Seam(
        name="closed tabs",
        what="components of tabs that are not open have `visible=False`",
        without="a page loads the code of every visible component, in whatever tab",
        file="studio/tab.py",
    ),
    Seam(
        name="a chosen theme",
        what="the class `dark` of the page's body",
        without="the page follows the system alone",
        file="studio/assets/theme.js",
    ),
    Seam(
        name="keys of tabs",
        what="arrow keys, addresses and panels' names for the elements of gr.Tabs",
        without="tabs ignore arrow keys, and a panel does not say whose it is",
        file="studio/assets/shell.js",
    ),
    Seam(
        name="under messages",
        what="buttons and notes in the rows of gr.Chatbot, whose log is no live region and whose messages no label",
        without="a note inside a message is copied with it, and the log is read aloud from its start at every redraw",
        file="studio/assets/chat_foot.js",
    ),
    Seam(
        name="emptied numbers",
        what="an emptied number of gr.Slider gets its usual value",
        without="it would become the smallest one",
        file="studio/assets/chat_box.js",
    ),
    Seam(
        name="frames",
        what="requestAnimationFrame, where the status tracker calls it",
        without="the tracker updates an event's seconds in every frame, also after its removal from the page",
        file="studio/assets/frames.js",
    ),
    Seam(
        name="smaller pictures",
        what="createImageBitmap, where the picture editor decodes a file",
        without="the editor sends its whole canvas at the size of the original file",
        file="studio/assets/pictures.js",
    ),
    Seam(
        name="pictures that are forgotten",
        what="ImageEditor.accept_blobs",
        without="pictures from editors are stored without a limit, with any number of layers",
        file="studio/picture_input.py",
    ),
    Seam(
        name="made files",
        what="a set in Blocks.temp_file_sets that iterates over a copy",
        without="the clean-up iterates over the sets themselves, and fails if a file is added meanwhile",
        file="studio/files.py",
    ),
)

_COOKIE = "access-token-unsecure-"  # and the app's `cookie_id`: the name of Gradio's cookie where there is no TLS


def id_of(event: Any) -> Any:
    """The id of an event, or the number of a page's function."""
    return event._id


def details_of(event: gr.EventData) -> Any:
    """What a browser has sent with an event, such as the place of a picture in a gallery; unchecked."""
    if not hasattr(event, "_data"):
        missing("gradio:EventData._data", "clicks on buttons in messages, on thumbnails and on labels do nothing")
        return None
    return event._data


def queue_of(page: gr.Blocks) -> Queue:
    """A page's queue.

    Raises:
        Moved: it is elsewhere.
    """
    if not hasattr(page, "_queue"):
        raise moved("gradio.blocks:Blocks._queue")
    return page._queue


async def cancel_running(session: str, fn: BlockFunction) -> None:
    """Cancel what runs of a function for a session."""
    await needed("gradio.utils:cancel_tasks")({f"{session}_{fn._id}"})


def close_doors(page: gr.Blocks) -> None:
    """Close what Gradio leaves open to clients: in this page, and but for `has_launched` in the whole process.

    Raises:
        Moved: a door to files or to other hosts can't be closed.
    """
    replace("gradio.processing_utils:async_ssrf_protected_download", _refuse, without=None)
    if not hasattr(page, "has_launched"):
        raise moved("gradio.blocks:Blocks.has_launched")
    page.has_launched = True
    session = "gradio.state_holder:SessionState"
    replace(f"{session}._update_value_in_config", _forget, without="the last values of each session are kept")
    replace(f"{session}.__init__", _light, without="new sessions are slow")
    replace("gradio.utils:MatplotlibBackendMananger", nullcontext, without="streams are slow")
    replace("gradio.routes:file_upload_statuses", UploadProgress(), without="uploads are watched without a limit")


async def _refuse(url: str, cache_dir: str) -> str:
    raise gr.Error("files are uploaded, and not fetched from elsewhere", print_exception=False)


def _forget(state: SessionState, key: int, value: Any) -> None:
    """Takes the place of the method that stores a component's value for links to a page."""


def _light(state: SessionState, blocks: gr.Blocks) -> None:
    """Takes the place of `SessionState.__init__`, without the configuration of every component."""
    state.blocks_config = copy(blocks.default_config)
    state.config_values = {}
    state.state_data = {}
    state._state_ttl = {}
    state.is_closed = False
    state.STATE_TTL_WHEN_CLOSED = 3600


def poll_every(page: gr.Blocks, seconds: float) -> None:
    """How long a page's queue sleeps where nothing waits in it."""
    queue = queue_of(page)
    if not hasattr(queue, "sleep_when_free"):
        missing("gradio.queueing:Queue.sleep_when_free", "the queue polls as often as Gradio does")
    queue.sleep_when_free = seconds


def known_user(page: App) -> bytes:
    """Make a user without a name known to a page's app; returns their cookie, b"" where that is not possible."""
    if not hasattr(page, "tokens") or not hasattr(page, "cookie_id"):
        missing("gradio.routes:App.tokens", "visitors who have logged in see Gradio's own login page")
        return b""
    token = secrets.token_urlsafe(32)
    page.tokens[token] = ""
    return f"{_COOKIE}{page.cookie_id}={token}".encode()


def add_space_login(page: App) -> None:
    """Add Gradio's OAuth routes to its app, with their own /logout in the place of the other one."""
    page.router.routes[:] = [route for route in page.router.routes if getattr(route, "path", "") != "/logout"]
    needed("gradio.oauth:attach_oauth")(page)


def space_cookie_secret() -> str:
    """The key that the session cookie of a Space's login is signed with, as gradio/oauth.py makes it."""
    return hashlib.sha256(f"{os.environ['OAUTH_CLIENT_SECRET']}-v4".encode()).hexdigest()


def extend_templates(extension: type[Any]) -> None:
    """Add an extension to the environment of the pages, which are Jinja templates."""
    templates: Any = needed("gradio.routes:templates")
    templates.env.add_extension(extension)


class UploadProgress(FileUploadProgress):
    """The progress of the UPLOADS_WATCHED newest uploads, each for one page that waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[str, asyncio.Event] = {}
        self._read: set[str] = set()

    def track(self, upload_id: str) -> None:
        if upload_id in self._statuses:
            return
        self._statuses[upload_id] = FileUploadProgressTracker(deque(), False)
        if (signal := self._waiting.get(upload_id)) is not None:
            signal.set()
        while len(self._statuses) > UPLOADS_WATCHED:
            self.stop_tracking(next(iter(self._statuses)))

    async def is_tracked(self, upload_id: str) -> bool:
        """Wait for an upload to begin; Gradio gives up after some seconds.

        Raises:
            TimeoutError: another page waits for it already.
        """
        if upload_id in self._read or upload_id in self._waiting:
            raise TimeoutError
        if upload_id not in self._statuses:
            signal = self._waiting[upload_id] = asyncio.Event()
            try:
                await signal.wait()
            finally:
                del self._waiting[upload_id]
        self._read.add(upload_id)
        return True

    def stop_tracking(self, upload_id: str) -> None:
        super().stop_tracking(upload_id)
        self._read.discard(upload_id)
