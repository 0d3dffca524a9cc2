"""Many texts: takes lines or a file; shows how labels fall, a confusion matrix, and the rows; offers a CSV file."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from hfjax_app.api.gradio_errors import errors_shown, streamed
from hfjax_app.backends import Backend
from hfjax_app.client import sender
from hfjax_app.errors import RequestRejected
from hfjax_app.limits import LISTS_AT_ONCE, LISTS_WAITING
from hfjax_app.line import FairLine
from hfjax_app.sentiment.bulk import Results, classify_rows
from hfjax_app.sentiment.interface import SentimentModel
from hfjax_app.sentiment.own_labels import LabelNames
from hfjax_app.sentiment.table import SUFFIXES, Table, opened, pasted
from hfjax_app.studio.bulk_job import ALL, DIFFER, BulkJob, stored
from hfjax_app.studio.files import MadeFiles
from hfjax_app.studio.label_drawing import agreement, asks, shares, table
from hfjax_app.studio.list_words import SAYS, ListWords
from hfjax_app.studio.tab import UNPROCESSED, UNQUEUED_UNPROCESSED, update_after, update_after_failure
from hfjax_app.studio.theme import ASSETS
from hfjax_app.validation import quoted

HEARTBEAT_S = 0.5  # between two messages to a waiting page; a message is when the server notices that it was closed
ROWS_SHOWN = 500
SESSION_S = 3600
NO_COLUMN = ""
_EXAMPLE = (ASSETS / "reviews.csv").read_text(encoding="utf-8")
# assets/lists.js puts the file into the field.
_TRY = f"""<p class="try"><button type="button" class="link" data-example="{escape(_EXAMPLE)}" data-name="reviews.csv">
Try a file of {_EXAMPLE.count(chr(10)) - 1} short reviews</button>, which has a column with labels.</p>"""


class ManyTexts:
    """Builds its components and events in the surrounding gr.Blocks."""

    def __init__(self, backend: Backend[SentimentModel], files: MadeFiles):
        self._backend, self._files = backend, files
        self._line = FairLine(LISTS_AT_ONCE)
        job = gr.State(None, time_to_live=SESSION_S)
        with gr.Row(equal_height=True, elem_classes="pair"):
            with gr.Column(scale=3, elem_classes="card"):
                lines = gr.Textbox(
                    "",
                    label="One text per line",
                    placeholder="I loved it\nThe soup was cold\n…",
                    lines=6,
                    max_lines=6,
                    elem_id="many-lines",
                )
                with gr.Row(elem_classes="actions"):
                    button = gr.Button("Classify all", variant="primary", elem_id="classify-all")
                    cancel = gr.Button("Cancel", interactive=False, elem_id="many-cancel")
                progress = gr.HTML(elem_id="many-progress", js_on_load=SAYS, apply_default_css=False)
            with gr.Column(scale=2, elem_classes="card"):
                file = gr.File(
                    label="or a CSV, TSV, JSON or text file", file_types=[*SUFFIXES], height=130, elem_id="many-file"
                )
                has_header = gr.Checkbox(
                    True, label="The first row holds the columns' names", visible=False, elem_id="many-header"
                )
                with gr.Row(elem_classes="actions"):
                    column = gr.Dropdown(
                        [], label="Column with the texts", visible=False, min_width=140, elem_id="many-column"
                    )
                    truth = gr.Dropdown(
                        [], label="Column with labels", visible=False, min_width=140, elem_id="many-truth"
                    )
                gr.HTML(_TRY, elem_id="many-example", apply_default_css=False)
        with gr.Column(visible=False, elem_id="many-results") as panel:
            with gr.Row(equal_height=True, elem_classes="pair even"):
                with gr.Column(elem_classes="card"):
                    fall = gr.HTML(elem_id="many-labels", apply_default_css=False)
                with gr.Column(elem_classes="card"):
                    words = ListWords(backend, self._line, job)
            read_as = gr.Dropdown(
                [], label="What the numbers in the column with labels mean", visible=False, elem_id="many-meaning"
            )
            beside = gr.HTML(visible=False, elem_id="many-agreement", apply_default_css=False)
            with gr.Column(elem_classes="card"):
                with gr.Row(elem_classes="card-head"):
                    gr.HTML("<h3>Row by row</h3>", apply_default_css=False)
                    shown = gr.Dropdown(
                        [ALL], value=ALL, label="Show", show_label=False, min_width=160, elem_id="many-filter"
                    )
                    download = gr.DownloadButton("Download as CSV", elem_id="many-download")
                rows = gr.HTML(elem_id="many-table", apply_default_css=False)
                count = gr.HTML(elem_id="many-count", apply_default_css=False)
        self._words, self._cache = words, Path(download.GRADIO_CACHE)
        gr.on(
            [file.upload, file.clear, has_header.input],
            self._inspect,
            [file, has_header],
            [has_header, column, truth, progress],
            trigger_mode="always_last",
            **UNPROCESSED,
        )
        compared = [read_as, beside, shown, rows, count, download]
        outputs = [job, progress, panel, fall, *words.reset, *compared, button, cancel]
        self._same = [gr.skip()] * (len(outputs) - 5)
        work = button.click(
            self._run,
            [job, lines, file, has_header, column, truth],
            outputs,
            concurrency_id="sentiment-many",
            concurrency_limit=LISTS_WAITING,
            **UNPROCESSED,
        )
        update_after_failure(work, [progress], [gr.update(value="")])
        update_after(work, [button, cancel], _idle())
        cancel.click(self._cancel, [job], [cancel], **UNQUEUED_UNPROCESSED)
        shown.input(self._filter, [job, shown], [rows, count, download], **UNPROCESSED)
        read_as.input(self._read_as, [job, read_as], compared, **UNPROCESSED)

    async def _inspect(self, file: object, has_header: object) -> list[Any]:
        """The columns of a file that was just uploaded, so that a mistake shows before anything is classified."""
        if file is None:
            return [gr.Checkbox(visible=False), gr.Dropdown(visible=False), gr.Dropdown(visible=False), ""]
        with errors_shown():
            names = LabelNames(self._backend.get().labels)
            source = await asyncio.to_thread(self._opened, file, has_header)
            labels = await asyncio.to_thread(names.likely_column, source, source.likely) or NO_COLUMN
        has_columns = source.kind != ".txt"
        texts = gr.Dropdown(list(source.columns), value=source.likely, visible=has_columns)
        choices = [("none", NO_COLUMN), *((name, name) for name in source.headers)]
        truth = gr.Dropdown(choices, value=labels, visible=len(source.headers) > 1)
        note = _note(f"{source.name}: {source.rows:,} rows")
        return [gr.Checkbox(visible=source.kind in (".csv", ".tsv")), texts, truth, note]

    @streamed
    async def _run(
        self, before: BulkJob | None, lines: object, file: object, has_header: object, column: Any, truth: Any
    ) -> AsyncGenerator[list[Any], None]:
        classifier = self._backend.get()
        source = pasted(lines) if file is None else await asyncio.to_thread(self._opened, file, has_header)
        cells = source.cells(source.likely if file is None or source.kind == ".txt" else column)
        if file is None or source.kind == ".txt":
            truth = NO_COLUMN
        elif truth not in (NO_COLUMN, *source.headers):
            raise RequestRejected(f"column {quoted(truth)}: must be one of {', '.join(source.headers)}")
        job = BulkJob(results=Results(labels=tuple(classifier.labels), columns=source.headers), total=source.rows)
        if before is not None:
            before.drop_words()
        same = self._same
        with self._line.join(sender().id) as place:
            buttons = gr.Button(interactive=False), gr.Button(interactive=True)
            # Hidden by a class and not by `visible`, so that charts are not removed and added within a moment.
            yield [job, _note("Starting …"), gr.Column(elem_classes="outdated"), *same, *buttons]
            while (waiting := place.number) and not job.cancelled:
                yield [gr.skip(), _note(f"Place {waiting} in line"), gr.skip(), *same, gr.skip(), gr.skip()]
                await asyncio.sleep(HEARTBEAT_S)
            started = time.perf_counter()
            pieces = classify_rows(classifier, cells)
            while not job.cancelled and (rows := await asyncio.to_thread(next, pieces, None)):
                job.results.add(rows)
                self._backend.get()  # raises ModelUnavailable when the server is stopping
                going = _progress(job, time.perf_counter() - started)
                yield [gr.skip(), going, gr.skip(), *same, gr.skip(), gr.skip()]
        done, seconds = len(job.results.rows), time.perf_counter() - started
        ended = f"Cancelled: {done:,} of {job.total:,} rows done" if job.cancelled else f"{done:,} rows"
        note = _note(f"{ended} in {seconds:.1f} s", is_said=True)
        chosen = await asyncio.to_thread(job.compare, truth) if truth and done else ""
        yield [
            gr.skip(),
            note,
            gr.Column(visible=done > 0, elem_classes=""),
            shares(job.results),
            *self._words.emptied(job.results),
            gr.Dropdown([name for name in job.readings if name], value=chosen, visible=len(job.readings) > 1),
            *await asyncio.to_thread(self._compared, job),
            gr.skip(),
            gr.skip(),
        ]

    def _compared(self, job: BulkJob) -> list[Any]:
        """The matrix or a question, the choice of rows, and all rows."""
        choices = [(ALL, ALL), *((f"{label} · {count:,}", label) for label, count in job.results.counts.most_common())]
        beside = ""
        if job.agreement is not None:
            beside = agreement(job.agreement)
            if differing := job.agreement.texts - job.agreement.right:
                choices.insert(1, (f"{DIFFER} · {differing:,}", DIFFER))
        elif job.column:
            beside = asks(job.column)
        return [gr.HTML(beside, visible=bool(beside)), gr.Dropdown(choices, value=ALL), *self._table(job, ALL)]

    async def _read_as(self, job: BulkJob | None, chosen: object) -> list[Any]:
        """The visitor says what the numbers mean."""
        with errors_shown():
            if not isinstance(chosen, str):
                raise RequestRejected(f"meaning: must be text, not {type(chosen).__name__}")
            found = stored(job)
            await asyncio.to_thread(found.read_as, chosen)
            return [gr.skip(), *await asyncio.to_thread(self._compared, found)]

    def _cancel(self, job: BulkJob | None) -> gr.Button:
        """End the job after its current piece; the page then shows the results so far."""
        if job is not None:
            job.cancelled = True
        return gr.Button(interactive=False)

    async def _filter(self, job: BulkJob | None, shown: object) -> list[Any]:
        with errors_shown():
            if not isinstance(shown, str):
                raise RequestRejected(f"rows to show: must be text, not {type(shown).__name__}")
            return await asyncio.to_thread(self._table, stored(job), shown)

    def _table(self, job: BulkJob, shown: str) -> list[Any]:
        """The table, its note, and the file to download, see `BulkJob.rows`."""
        key = shown, len(job.results.rows)  # while the job runs, a file has only some of the rows
        rows = job.rows(shown)
        if key not in job.files:
            folder = self._cache / secrets.token_hex(16)
            folder.mkdir(parents=True)
            job.files[key] = job.results.save_csv(folder / "sentiment.csv", rows)
            self._files.add(str(job.files[key]))
        count = f"{len(rows):,} rows" if len(rows) <= ROWS_SHOWN else f"the first {ROWS_SHOWN} of {len(rows):,} rows"
        return [
            table(rows[:ROWS_SHOWN], job.results.labels, job.agreement),
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


def _progress(job: BulkJob, seconds: float) -> str:
    done = len(job.results.rows)
    left = seconds / done * (job.total - done)
    return (
        f'<div class="note"><progress value="{done}" max="{job.total}" aria-label="Rows done"></progress>'
        f"{done:,} of {job.total:,} rows · about {left:.0f} s left</div>"
    )


def _idle() -> list[dict[str, Any]]:
    """The buttons Classify all and Cancel when nothing runs."""
    return [gr.update(interactive=True), gr.update(interactive=False)]


def _note(text: str, *, is_said: bool = False) -> str:
    said = f' data-say="{escape(text)}"' if is_said else ""
    return f'<div class="note"{said}>{escape(text)}</div>'
