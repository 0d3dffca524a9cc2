"""The words that matter most over a whole list: a label to choose, and its words as bars, which grow text by text."""

import asyncio
import time
from collections.abc import AsyncGenerator
from html import escape
from typing import Any

import gradio as gr

from hfjax_app.api.gradio_errors import streamed
from hfjax_app.backends import Backend
from hfjax_app.client import sender
from hfjax_app.errors import RequestRejected
from hfjax_app.limits import LISTS_WAITING, WORDS_MAX_S, WORDS_MAX_TEXTS
from hfjax_app.line import FairLine
from hfjax_app.sentiment.bulk import Results, WordRanking, explain_each, sample
from hfjax_app.sentiment.interface import SentimentModel
from hfjax_app.studio.bulk_job import BulkJob, stored
from hfjax_app.studio.label_drawing import WORDS_OF_A_LIST, bars
from hfjax_app.studio.tab import UNPROCESSED, UNQUEUED_UNPROCESSED, update_after, update_after_failure
from hfjax_app.validation import quoted

REDRAW_S = 0.5
_NOTHING_YET = (
    f'<p class="note">Which words speak for a label, and which against it: over up to {WORDS_MAX_TEXTS} of these '
    f"texts, for {WORDS_MAX_S} seconds at most.</p>"
)


class ListWords:
    """Builds its components in the surrounding gr.Blocks.

    Args:
        backend: the classifier.
        line: in which long work waits.
        job: the page's list.

    Attributes:
        reset: the components that another list gives new values, see `emptied`.
    """

    def __init__(self, backend: Backend[SentimentModel], line: FairLine, job: gr.State):
        self._backend, self._line = backend, line
        with gr.Row(elem_classes="card-head"):
            gr.HTML("<h3>Words that matter most</h3>", apply_default_css=False)
            label = gr.Dropdown([], label="for", show_label=False, min_width=120, elem_id="words-label")
            button = gr.Button("Find", elem_id="find-words")
            stop = gr.Button("Stop", interactive=False, elem_id="stop-words")
        drawing = gr.HTML(_NOTHING_YET, elem_id="list-words", js_on_load=SAYS, apply_default_css=False)
        self.reset = [label, drawing]
        work = gr.on(
            [button.click, label.input],
            self._search,
            [job, label],
            [drawing, button, stop],
            concurrency_id="sentiment-words",
            concurrency_limit=LISTS_WAITING,
            trigger_mode="always_last",
            **UNPROCESSED,
        )
        update_after_failure(work, [drawing], [gr.update(value=_NOTHING_YET)])
        update_after(work, [button, stop], [gr.update(interactive=True), gr.update(interactive=False)])
        gr.on([stop.click, label.input], self._stop, [job], [stop], **UNQUEUED_UNPROCESSED)

    def emptied(self, results: Results) -> list[Any]:
        """Values of `reset` for the results of another list."""
        known = [label for label, _ in results.counts.most_common() if label in results.labels]
        return [gr.Dropdown(list(results.labels), value=known[0] if known else None), _NOTHING_YET]

    @streamed
    async def _search(self, job: BulkJob | None, label: object) -> AsyncGenerator[list[Any], None]:
        job = stored(job)
        if not isinstance(label, str) or label not in job.results.labels:
            raise RequestRejected(f"label {quoted(label)}: must be one of {', '.join(job.results.labels)}")
        search = job.search_words(label)
        classifier = self._backend.get()
        rows = job.results.rows[:]
        texts = await asyncio.to_thread(sample, rows)
        explanations, ranking = explain_each(classifier, texts, label), WordRanking()
        with self._line.join(sender().id) as place:
            yield [_note("Starting …"), gr.Button(interactive=False), gr.Button(interactive=True)]
            while (waiting := place.number) and not search.cancelled:
                yield [_note(f"Place {waiting} in line"), gr.skip(), gr.skip()]
                await asyncio.sleep(REDRAW_S)
            yield [_note(f"Reading the first of {len(texts):,} texts …"), gr.skip(), gr.skip()]
            drawn_at = started = time.monotonic()
            while not search.cancelled and time.monotonic() - started < WORDS_MAX_S:
                explanation = await asyncio.to_thread(next, explanations, None)
                if explanation is None:
                    break
                ranking.add(explanation)
                self._backend.get()  # raises ModelUnavailable when the server is stopping
                if time.monotonic() - drawn_at > REDRAW_S:
                    drawn_at = time.monotonic()
                    yield [_drawn(ranking, label, len(texts), len(rows), is_done=False), gr.skip(), gr.skip()]
        if job.words is search:  # another search, or another list, has not taken its place
            yield [_drawn(ranking, label, len(texts), len(rows), is_done=True), gr.skip(), gr.skip()]

    def _stop(self, job: BulkJob | None) -> gr.Button:
        """End the search after its current text; the page then shows the words so far."""
        if job is not None:
            job.stop_words()
        return gr.Button(interactive=False)


def _drawn(ranking: WordRanking, label: str, most: int, rows: int, *, is_done: bool) -> str:
    """The words so far, and over how many texts they were computed."""
    if not ranking.texts:
        return _note("No text was read.")
    doing = "" if is_done else f'<progress value="{ranking.texts}" max="{most}" aria-label="Texts read"></progress> '
    fewer = f" of {rows:,}, drawn at random" if ranking.texts < rows else ""
    told = (
        f"How far each word moves the score of {label}, on average where it stands and less if it is rare: over "
        f"{ranking.texts:,} texts{fewer}."
    )
    say = f' data-say="{escape(told)}"' if is_done else ""
    strongest = sorted(ranking.strongest(WORDS_OF_A_LIST), key=lambda word: -word.weight)
    words = bars(strongest, f"The words that matter most to {label}", of_many=True)
    return f'<p class="note"{say}>{doing}{escape(told)}</p>{words}'


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


# What a gr.HTML says to screen readers when it has another value: the attribute `data-say` of an element in it.
SAYS = """watch('value', () => {
  const said = element.querySelector('[data-say]');
  if (said) studio.say(said.dataset.say);
});"""
