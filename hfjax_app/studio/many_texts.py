"""Many texts: takes lines or a file; shows a table of labels and two charts, and offers a CSV file."""

import asyncio
import html
import secrets
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr
import pandas as pd

from hfjax_app.api.gradio_errors import errors_shown, streamed
from hfjax_app.backends import Backend
from hfjax_app.errors import RequestRejected
from hfjax_app.limits import LISTS_AT_ONCE, LISTS_WAITING
from hfjax_app.sentiment.bulk import BINS, NO_LABEL, UNCLASSIFIED, Results, Row, classify_rows
from hfjax_app.sentiment.table import SUFFIXES, Table, opened, pasted
from hfjax_app.studio.event_options import UNPROCESSED, UNQUEUED_UNPROCESSED
from hfjax_app.studio.files import MadeFiles
from hfjax_app.studio.updates import update_after

if TYPE_CHECKING:
    from hfjax_app.sentiment.interface import SentimentModel

HEARTBEAT_S = 0.5  # between two messages to a waiting page; a message is when the server notices that it was closed
ROWS_SHOWN = 500
SHOWN_CHARACTERS = 300
SESSION_S = 3600
ALL = "all rows"
_HEADERS = ["row", "label", "text", "probability", "note"]


@dataclass(kw_only=True, eq=False)
class BulkJob:
    """The classification of one visitor's list.

    Attributes:
        results: the rows that are done.
        total: how many rows the list has.
        cancelled: whether the visitor has cancelled it.
        files: CSV files of the results, by label (None: all) and by the number of rows that were done.
    """

    results: Results
    total: int
    cancelled: bool = False
    files: dict[tuple[str | None, int], Path] = field(default_factory=dict)


class ManyTexts:
    """Builds its components and events in the surrounding gr.Blocks."""

    def __init__(self, backend: "Backend[SentimentModel]", files: MadeFiles):
        self._backend, self._files = backend, files
        self._jobs: list[BulkJob] = []  # of all visitors, in order of arrival; only touched on the event loop
        with gr.Row(equal_height=False):
            with gr.Column(scale=3):
                lines = gr.Textbox(
                    "",
                    label="One text per line",
                    placeholder="I loved it\nThe soup was cold\n…",
                    lines=8,
                    max_lines=8,
                    elem_id="many-lines",
                )
            with gr.Column(scale=2):
                file = gr.File(
                    label="or a CSV, TSV, JSON or text file",
                    file_types=[*SUFFIXES],
                    height=150,
                    elem_id="many-file",
                )
                has_header = gr.Checkbox(
                    True, label="The first row holds the columns' names", visible=False, elem_id="many-header"
                )
                column = gr.Dropdown([], label="Column with the texts", visible=False, elem_id="many-column")
        with gr.Row():
            button = gr.Button("Classify all", variant="primary", elem_id="classify-all")
            cancel = gr.Button("Cancel", interactive=False, elem_id="many-cancel")
        progress = gr.HTML(elem_id="many-progress")
        with gr.Column(visible=False, elem_id="many-results") as panel:
            with gr.Row():
                bars = gr.BarPlot(
                    x="label",
                    y="texts",
                    title="Labels",
                    sort="-y",
                    y_lim=[0, None],
                    height=240,
                    min_width=280,
                    elem_id="many-labels",
                )
                histogram = gr.BarPlot(
                    x="probability",
                    y="texts",
                    title="Probability of the label",
                    y_lim=[0, None],
                    height=240,
                    min_width=280,
                    x_label_angle=-45,
                    elem_id="many-confidence",
                )
            with gr.Row(equal_height=False):
                shown = gr.Dropdown([ALL], value=ALL, label="Show", elem_id="many-filter")
                download = gr.DownloadButton("Download as CSV", elem_id="many-download")
            table = gr.Dataframe(
                headers=_HEADERS,
                datatype=["number", "str", "str", "number", "str"],
                column_widths=["60px", "120px", "480px", "110px", "250px"],
                wrap=True,
                max_height=420,
                interactive=False,
                show_label=False,
                buttons=[],
                elem_id="many-table",
            )
            count = gr.HTML(elem_id="many-count")
        self._cache = Path(download.GRADIO_CACHE)
        job = gr.State(None, time_to_live=SESSION_S)
        gr.on(
            [file.upload, file.clear, has_header.input],
            self._inspect,
            [file, has_header],
            [has_header, column, progress],
            trigger_mode="always_last",
            **UNPROCESSED,
        )
        outputs = [job, progress, panel, bars, histogram, shown, table, count, download, button, cancel]
        work = button.click(
            self._run,
            [lines, file, has_header, column],
            outputs,
            concurrency_id="sentiment-many",
            concurrency_limit=LISTS_WAITING,
            **UNPROCESSED,
        )
        update_after(work, [button, cancel], _idle())
        cancel.click(self._cancel, [job], [cancel], **UNQUEUED_UNPROCESSED)
        shown.input(self._filter, [job, shown], [table, count, download], **UNPROCESSED)

    async def _inspect(self, file: object, has_header: object) -> list[Any]:
        """The columns of a file that was just uploaded, so that a mistake shows before anything is classified."""
        if file is None:
            return [gr.Checkbox(visible=False), gr.Dropdown(visible=False), ""]
        with errors_shown():
            source = await asyncio.to_thread(self._opened, file, has_header)
        has_columns = source.kind != ".txt"
        picker = gr.Dropdown(list(source.columns), value=source.likely, visible=has_columns)
        note = _note(f"{source.name}: {source.rows:,} rows")
        return [gr.Checkbox(visible=source.kind in (".csv", ".tsv")), picker, note]

    @streamed
    async def _run(
        self, lines: object, file: object, has_header: object, column: Any
    ) -> AsyncGenerator[list[Any], None]:
        classifier = self._backend.get()
        source = pasted(lines) if file is None else await asyncio.to_thread(self._opened, file, has_header)
        cells = source.cells(source.likely if file is None or source.kind == ".txt" else column)
        job = BulkJob(results=Results(labels=tuple(classifier.labels), columns=source.headers), total=source.rows)
        same = [gr.skip()] * 9
        self._jobs.append(job)
        try:
            buttons = gr.Button(interactive=False), gr.Button(interactive=True)
            # Not `visible`: Gradio's charts log errors when they are removed and added within a moment.
            yield [job, _note("Starting …"), gr.Column(elem_classes="outdated"), *same[:6], *buttons]
            while (place := self._jobs.index(job) + 1 - LISTS_AT_ONCE) > 0 and not job.cancelled:
                yield [gr.skip(), _note(f"Place {place} in line"), *same]
                await asyncio.sleep(HEARTBEAT_S)
            started = time.perf_counter()
            pieces = classify_rows(classifier, cells)
            while not job.cancelled and (rows := await asyncio.to_thread(next, pieces, None)):
                job.results.add(rows)
                self._backend.get()  # raises ModelUnavailable when the server is stopping
                yield [gr.skip(), _progress(job, time.perf_counter() - started), *same]
        finally:
            self._jobs.remove(job)
        done, seconds = len(job.results.rows), time.perf_counter() - started
        ended = f"Cancelled: {done:,} of {job.total:,} rows done" if job.cancelled else f"{done:,} rows"
        note = _note(f"{ended} in {seconds:.1f} s")
        labels = [(f"{label} · {number:,}", label) for label, number in job.results.counts.most_common()]
        options = gr.Dropdown([(ALL, ALL), *labels], value=ALL)
        table = await asyncio.to_thread(self._table, job, None)
        charts = [label_counts(job.results), confidence(job.results)]
        panel = gr.Column(visible=done > 0, elem_classes="")
        yield [gr.skip(), note, panel, *charts, options, *table, gr.skip(), gr.skip()]

    def _cancel(self, job: BulkJob | None) -> gr.Button:
        """End the job after its current piece; the page then shows the results so far."""
        if job is not None:
            job.cancelled = True
        return gr.Button(interactive=False)

    async def _filter(self, job: BulkJob | None, label: Any) -> list[Any]:
        with errors_shown():
            if job is None:
                raise RequestRejected("these results were deleted: classify the texts again")
            wanted = None if label == ALL else label
            if wanted is not None and wanted not in job.results.counts:
                raise RequestRejected(f"label {label!r}: no row has it; choose one from the list")
            return await asyncio.to_thread(self._table, job, wanted)

    def _table(self, job: BulkJob, label: str | None) -> list[Any]:
        """The table, its note, and the file to download, for all rows or those of one label."""
        key = label, len(job.results.rows)  # while the job runs, a file has only some of the rows
        rows = list(job.results.of(label))
        if key not in job.files:
            folder = self._cache / secrets.token_hex(16)
            folder.mkdir(parents=True)
            job.files[key] = job.results.save_csv(folder / "sentiment.csv", label)
            self._files.add(str(job.files[key]))
        count = f"{len(rows):,} rows" if len(rows) <= ROWS_SHOWN else f"the first {ROWS_SHOWN} of {len(rows):,} rows"
        return [
            [_line(row) for row in rows[:ROWS_SHOWN]],
            _note(f"{count}; the download has all"),
            str(job.files[key]),
        ]

    def _opened(self, file: object, has_header: object) -> Table:
        """The table in an uploaded file. The client sends the path, so it must be in the upload folder."""
        path = file.get("path") if isinstance(file, dict) else None
        if not isinstance(path, str) or "\0" in path:
            raise RequestRejected("file: upload it first")
        resolved = Path(path).resolve()
        if not resolved.is_relative_to(self._cache.resolve()) or not resolved.is_file():
            raise RequestRejected(f"file {Path(path).name!r} was not uploaded here, or was deleted: upload it again")
        return opened(resolved, has_header=has_header is not False)


def label_counts(results: Results) -> pd.DataFrame:
    """The number of rows of each label: columns label and texts."""
    names = [*results.labels, *(name for name in (NO_LABEL, UNCLASSIFIED) if results.counts[name])]
    return pd.DataFrame({"label": names, "texts": [results.counts[name] for name in names]})


def confidence(results: Results) -> pd.DataFrame:
    """The number of rows by their label's probability: columns probability (a range of per cent) and texts."""
    width = 100 // BINS
    names = [f"{low}–{low + width} %" for low in range(0, 100, width)]
    return pd.DataFrame({"probability": names, "texts": results.confidence})


def _line(row: Row) -> list[Any]:
    text = row.text if len(row.text) <= SHOWN_CHARACTERS else f"{row.text[:SHOWN_CHARACTERS]} …"
    probability = None if row.prediction is None else round(row.prediction.probability, 4)
    return [row.number, "; ".join(row.labels), text, probability, row.note]


def _progress(job: BulkJob, seconds: float) -> str:
    done = len(job.results.rows)
    left = seconds / done * (job.total - done)
    return (
        f'<div class="note"><progress value="{done}" max="{job.total}"></progress>'
        f"{done:,} of {job.total:,} rows · about {left:.0f} s left</div>"
    )


def _idle() -> list[dict[str, Any]]:
    """The buttons Classify all and Cancel when nothing runs."""
    return [gr.update(interactive=True), gr.update(interactive=False)]


def _note(text: str) -> str:
    return f'<div class="note">{html.escape(text)}</div>'
