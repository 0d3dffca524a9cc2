"""The tab Engine: what is compiled, how fast, on what; and the ladder. Only reads what models count about themselves.

An open tab asks once a second, or less often where many are open, and gets only what has changed. The first question
after a visitor has left the tab stops its timer, so that a page whose tab is closed asks nothing.
"""

import hashlib
import threading
import time
from collections.abc import Callable
from typing import Any

import gradio as gr

from hfjax_app.backends import Backends
from hfjax_app.backends.snapshot import Snapshot, take
from hfjax_app.ladder_result import read
from hfjax_app.runtime.process import cache_folder
from hfjax_app.studio.engine_drawing import live, programs
from hfjax_app.studio.event_options import UNQUEUED
from hfjax_app.studio.ladder_drawing import ladder
from hfjax_app.studio.tab import Shared, Tab

POLL_S = 1.0
MOST_POLLS_PER_S = 8.0  # of all pages together
LONGEST_POLL_S = 30.0
_KNOWN_CHARACTERS = 100  # of what a page says that it shows

_TITLE = """<div class="engine-head"><h2>Engine</h2><p>What runs on this machine right now: a fixed set of compiled
programs, and slots that people share. Nothing is compiled while you wait.</p></div>"""
# What the page shows, as "digest digest"; empty where its tab is closed.
_SHOWN = """() => {
  const parts = ["#engine-live", "#engine-programs"].map((id) => document.querySelector(`${id} [data-digest]`));
  return parts[0]?.offsetParent ? parts.map((part) => part?.dataset.digest ?? "").join(" ") : "";
}"""


class EngineTab(Tab):
    """Figures of all models; it has no controls."""

    title, id, loading = "Engine", "engine", None

    def __init__(self, shared: Shared):
        self._drawings = _Drawings(shared.backends)
        self._pace = _Pace()
        gr.HTML(_TITLE, elem_classes="engine", apply_default_css=False)
        self._live, self._programs, self._ladder = (
            gr.HTML("", elem_id=f"engine-{part}", elem_classes="engine", apply_default_css=False)
            for part in ("live", "programs", "ladder")
        )
        self._timer = gr.Timer(POLL_S, active=False)
        shown = gr.Textbox(visible=False)
        self._timer.tick(self._changed, shown, [self._live, self._programs, self._timer], js=_SHOWN, **UNQUEUED)

    def watch(self, tab: gr.Tab) -> None:
        """Draw everything when the tab is opened, and ask from then on."""
        tab.select(self._opened, None, [self._live, self._programs, self._ladder, self._timer], **UNQUEUED)

    def _opened(self) -> list[Any]:
        (now, _), (made, _) = self._drawings.now()
        return [now, made, ladder(read(cache_folder())), gr.Timer(active=True)]

    def _changed(self, shown: object) -> list[Any]:
        """What differs from what the page shows.

        Args:
            shown: the digests of the page's parts; anything else is no part.
        """
        if not isinstance(shown, str) or not (known := shown[:_KNOWN_CHARACTERS].split()):
            return [gr.skip(), gr.skip(), gr.Timer(active=False)]
        parts = [gr.skip() if digest in known else text for text, digest in self._drawings.now()]
        return [*parts, gr.Timer(self._pace.polled(), active=True)]


class _Drawings:
    """The live part and the ledger, drawn at most once in half a poll for all pages."""

    def __init__(self, backends: Backends):
        self._backends = backends
        self._drawing = threading.Lock()
        self._drawn_at = float("-inf")
        self._drawn: list[tuple[str, str]] = []

    def now(self) -> list[tuple[str, str]]:
        """Each part as HTML, and its digest."""
        with self._drawing:
            if time.monotonic() - self._drawn_at > POLL_S / 2:
                snapshot = take(self._backends)
                self._drawn = [_digested(draw, snapshot) for draw in (live, programs)]
                self._drawn_at = time.monotonic()
            return self._drawn


def _digested(draw: Callable[[Snapshot], str], snapshot: Snapshot) -> tuple[str, str]:
    text = draw(snapshot)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f'<div data-digest="{digest}">{text}</div>', digest


class _Pace:
    """How often each page may ask, so that all together ask MOST_POLLS_PER_S times a second at most."""

    def __init__(self) -> None:
        self._counting = threading.Lock()
        self._second, self._polls, self._every_s = 0, 0, POLL_S

    def polled(self) -> float:
        """Count a question; seconds until the page's next one."""
        with self._counting:
            self._polls += 1
            second = int(time.monotonic())
            if elapsed := second - self._second:
                pages = self._polls / elapsed * self._every_s
                self._every_s = min(max(POLL_S, float(round(pages / MOST_POLLS_PER_S))), LONGEST_POLL_S)
                self._second, self._polls = second, 0
            return self._every_s
