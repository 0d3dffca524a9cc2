"""The tab Engine: what is compiled, how fast, on what; and the ladder; as HTML of snapshots of what models count.

An open tab asks once a second, or less often where many are open, and gets only what has changed. The first question
after a visitor has left the tab stops its timer, so that a page whose tab is closed asks nothing.

The ladder is a bar chart of its last result beside the blog posts' figures, with a table behind it.
"""

import hashlib
import html
import math
import re
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from hfjax_app.backends import Backends
from hfjax_app.backends.snapshot import ModelSnapshot, Snapshot, take
from hfjax_app.chat.engine.stats import PERIOD_S, PERIODS, EngineActivity, SlotState
from hfjax_app.ladder_result import PARTS, LadderPart, LadderResult, PartResult, Rung, RungResult, in_words, read
from hfjax_app.runtime.process import cache_folder
from hfjax_app.runtime.program_report import ProgramReport
from hfjax_app.studio.tab import UNQUEUED, Shared, Tab

_SHORTEST, _LONGEST = 1.5, 100.0  # percent of a bar's room
_POSTS = "https://huggingface.co/blog/qihqi/huggingface-jax-01"


def ladder(result: LadderResult | None) -> str:
    """The card of the ladder; without a kept result the posts' figures and how to run one."""
    if result is None:
        where = "It has not run on this machine yet: <code>hfjax ladder</code> runs it."
    else:
        day = html.escape(result.at[:10])
        where = f"Run on {html.escape(result.device)}, {day}, {html.escape(result.versions)}."
    told = (
        f'The road from eager PyTorch to this engine, as <a href="{_POSTS}" rel="noopener">these blog posts</a> '
        f"describe it. Bars: how many times faster than the rung marked 1×, on a logarithmic scale. {where}"
    )
    found = {} if result is None else {part.id: part for part in result.parts}
    key = (
        '<div class="key"><span><i class="c5"></i>the posts, on their machines</span>'
        '<span><i class="c1"></i>this machine, compiled before</span></div>'
    )
    drawn = {part.id: _part(part, found.get(part.id)) for part in PARTS}
    chat, *others = drawn.values()
    return (
        f'<section class="card ladder-card"><header><h3>The ladder</h3><p>{told}</p></header>{key}{chat}'
        f'<div class="engine-row two">{"".join(others)}</div>{_table(found)}'
        '<p class="note">Seconds of different models and machines can\'t be compared; the steps between the rungs can. '
        "Each rung is checked to give the same tokens, or pixels, as the one before.</p></section>"
    )


def _part(part: LadderPart, result: PartResult | None) -> str:
    mine = {} if result is None else {rung.id: rung for rung in result.rungs}
    times = [mine[rung.id].again_s if rung.id in mine else None for rung in part.rungs]
    base = next((i for i, rung in enumerate(part.rungs) if rung.posts_s is not None), 0)
    posts = _faster([rung.posts_s for rung in part.rungs], base)
    ours = _faster(times, base)
    most = max([2.0, *(ratio for ratio in (*posts, *ours) if ratio is not None)])
    rungs = "".join(
        f'<li class="rung"><div><h5>{i}. {html.escape(rung.title)}</h5><p>{html.escape(rung.says)}</p></div>'
        f'<div class="bars">{_posts_bar(rung, posts[i - 1], most)}'
        f"{_own_bar(mine.get(rung.id), ours[i - 1], most)}</div></li>"
        for i, rung in enumerate(part.rungs, 1)
    )
    what = f"{part.title} of {result.amount} tokens" if result is not None and part.id == "chat" else part.title
    model = f", {html.escape(result.model)} in {html.escape(result.dtype)}" if result is not None else ""
    amount = f", {result.amount} steps" if result is not None and part.id == "images" else ""
    return (
        f'<div class="ladder-part"><h4>{what}<span>{model}{amount}; posts: {html.escape(part.posts)}</span></h4>'
        f'<ol class="ladder">{rungs}</ol></div>'
    )


def _faster(times: list[float | None], base: int) -> list[float | None]:
    """How many times faster each is than the one at `base`, or than the first that there is."""
    known = [time for time in (times[base], *times) if time]
    return [known[0] / time if time else None for time in times]


def _width(ratio: float, most: float) -> float:
    return max(_SHORTEST, _LONGEST * math.log(max(ratio, 1.0)) / math.log(most))


def _bar(kind: str, ratio: float, most: float, note: str) -> str:
    times = f"{ratio:,.0f}" if ratio >= 20 else f"{ratio:.2g}"
    return (
        f'<div><i class="{kind}" style="--w:{_width(ratio, most):.1f}%"></i><span><b>{times}×</b> {note}</span></div>'
    )


def _posts_bar(rung: Rung, ratio: float | None, most: float) -> str:
    if rung.posts_s is None or ratio is None:
        return '<div class="none">not in the posts</div>'
    return _bar("c5", ratio, most, _posted(rung.posts_s))


def _own_bar(result: RungResult | None, ratio: float | None, most: float) -> str:
    if result is None:
        return '<div class="none">not run here yet</div>'
    if result.again_s is None or ratio is None:
        return f'<div class="none">{html.escape(result.note)}</div>'
    about = "about " if result.is_stopped else ""
    wrong = f'<em class="wrong">{html.escape(result.note)}</em>' if result.same is False else ""
    return _bar("c1", ratio, most, f"{about}{in_words(result.again_s)}{wrong}")


def _table(found: dict[str, PartResult]) -> str:
    """The same figures and what the bars leave out: the first run, and how many programs were compiled."""
    rows = []
    for part in PARTS:
        mine = {rung.id: rung for rung in found[part.id].rungs} if part.id in found else {}
        rows.append(f'<tr class="of"><th scope="rowgroup" colspan="6">{html.escape(part.title)}</th></tr>')
        for rung in part.rungs:
            cells = [_posted(rung.posts_s) if rung.posts_s is not None else "–", *_cells(mine.get(rung.id))]
            numbers = "".join(f'<td class="n">{cell}</td>' for cell in cells)
            file = f'<td class="shape"><code>{rung.code}</code></td>'
            rows.append(f'<tr><th scope="row">{html.escape(rung.title)}</th>{numbers}{file}</tr>')
    heads = "".join(
        f'<th scope="col" class="{kind}">{name}</th>'
        for name, kind in (
            ("Rung", ""),
            ("Posts", "n"),
            ("First run here", "n"),
            ("Compiled in it", "n"),
            ("Again", "n"),
            ("Code, in hfjax_app/ladder/", "shape"),
        )
    )
    return (
        "<details><summary>All figures as a table</summary>"
        '<div class="engine-table" tabindex="0" role="region" aria-label="Table of the ladder">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def _cells(result: RungResult | None) -> tuple[str, str, str]:
    if result is None or result.first_s is None or result.again_s is None:
        return "–", "–", "–"
    over, about = ("over ", "about ") if result.is_stopped else ("", "")
    return (
        f"{over}{in_words(result.first_s)}",
        f"{result.compiled_first:,}",
        f"{about}{in_words(result.again_s)}",
    )


def _posted(seconds: float) -> str:
    """A time with all digits that the posts give."""
    return f"{seconds * 1e3:g} ms" if seconds < 0.1 else f"{seconds:g} s"


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


MOST_SLOTS = 32  # that are drawn
_NUMBERS = re.compile(r"_?(\d+(?:x\d+)*)$")
# What the numbers behind a program's name count.
_SHAPES = {
    "chat prefill": "{} tokens, {} positions",
    "chat decode": "{} slots, {} positions",
    "chat speculate": "one slot, {} positions",
    "chat copy": "{} positions",
    "classify": "{} texts, {} tokens",
    "explain": "{} points, {} tokens",
}


def live(snapshot: Snapshot) -> str:
    """Tokens a second, slots, memory: what changes from second to second."""
    chats = [(model, model.chat) for model in snapshot.models if model.chat is not None]
    slots = "".join(_slots(model, activity, is_only=len(chats) == 1) for model, activity in chats)
    if not slots:
        waiting = "; ".join(f"{model.name}: {model.progress}" for model in snapshot.models if model.kind == "chat")
        slots = _card("Slots", html.escape(waiting), "")
    return (
        f'<div class="engine-row kpis">{_kpis(snapshot, [activity for _, activity in chats])}</div>'
        f'<div class="engine-row wide-left"><div class="engine-column">{slots}</div>{_memory(snapshot)}</div>'
    )


def programs(snapshot: Snapshot) -> str:
    """The ledger: every program of every model."""
    reports = [report for model in snapshot.models for report in model.programs]
    seconds = sum(report.traced + report.compiling for report in reports)
    cost = f", {seconds:,.0f} s of tracing and compiling" if seconds else ""
    told = (
        f"{len(reports)} in all{cost}. Each was traced from PyTorch code once and compiled by XLA, or read from a "
        "cache or a bundle of an earlier start. Requests only run them."
    )
    heads = (
        '<th scope="col">Program</th><th scope="col" class="shape">Shape</th><th scope="col" class="n trace">Trace</th>'
        '<th scope="col" class="n">Compile</th><th scope="col" class="from">From</th>'
    )
    bodies = "".join(_ledger(model) for model in snapshot.models if model.programs)
    table = (
        '<div class="engine-table" tabindex="0" role="region" aria-label="Table of programs">'
        f"<table><thead><tr>{heads}</tr></thead>{bodies}</table></div>"
    )
    return _card("Programs", told, table)


def _card(title: str, note: str, content: str, classes: str = "") -> str:
    return f'<section class="card {classes}"><header><h3>{title}</h3><p>{note}</p></header>{content}</section>'


def _kpis(snapshot: Snapshot, chats: Sequence[EngineActivity]) -> str:
    rates = [sum(parts) for parts in zip(*(chat.rates for chat in chats if chat.rates), strict=True)]
    is_known = bool(rates) or not chats  # of replicas in other processes only the counters are
    rates = rates or [0.0] * PERIODS
    first = [seconds for chat in chats for seconds in chat.first_token_s]
    median = f"{_number(statistics.median(first))} <small>s</small>" if first else "–"
    told = f"median of {_count(len(first), 'answer')}" if first else "no answer yet"
    drawn = [model.image_steps_per_s for model in snapshot.models if model.image_steps_per_s is not None]
    steps = f"{_number(drawn[-1])} <small>a second</small>" if drawn else "–"
    compiled = [(model.name, model.compiled_by_requests) for model in snapshot.models]
    count = sum(number for _, number in compiled)
    each = " · ".join(f"{html.escape(name)} {number}" for name, number in compiled)
    why = f"{each}. Picture sizes that were not warm" if count else each
    return "".join(
        [
            f'<section class="card kpi split"><div><h3>Tokens a second</h3><div class="v">'
            f"{_number(rates[-1]) if is_known else '–'}</div><p>all users, prompts included</p></div>"
            f"{_spark(rates) if is_known else ''}</section>",
            _kpi("First token", median, told),
            _kpi("Image steps", steps, "the latest picture" if drawn else "no picture yet"),
            _kpi("Compiled on request", f'<span class="{"" if count else "right"}">{count}</span>', why),
        ]
    )


def _kpi(title: str, value: str, note: str) -> str:
    return f'<section class="card kpi"><h3>{title}</h3><div class="v">{value}</div><p>{note}</p></section>'


def _spark(rates: Sequence[float]) -> str:
    """A line of the rates, with an area below it, in a box of 300 x 60."""
    top = max(*rates, 1.0)
    points = [(300 * i / (len(rates) - 1), 58 - 56 * rate / top) for i, rate in enumerate(rates)]
    line = "M" + "L".join(f"{x:.0f} {y:.0f}" for x, y in points)
    minutes = len(rates) * PERIOD_S // 60
    label = f"Tokens a second over {minutes} minutes: at most {_number(max(rates))}, {_number(rates[-1])} now"
    return (
        f'<figure><svg viewBox="0 0 300 60" preserveAspectRatio="none" role="img" aria-label="{label}">'
        f'<path d="{line}L300 60L0 60Z" class="area"/><path d="{line}" class="line"/></svg>'
        f'<figcaption aria-hidden="true"><span>{minutes} min ago</span><span>now</span></figcaption></figure>'
    )


def _slots(model: ModelSnapshot, activity: EngineActivity, *, is_only: bool) -> str:
    stats = activity.stats
    free = stats.slots - stats.busy
    waiting = f", {_count(stats.waiting, 'request')} in line" if stats.waiting else ""
    told = f"{model.context:,} tokens each: {stats.busy} at work in the same step, {free} free{waiting}"
    cells = "".join(_slot(i, slot, model.context) for i, slot in enumerate(activity.slots[:MOST_SLOTS], 1))
    more = stats.slots - MOST_SLOTS
    rest = f'<p class="note">and {more} more</p>' if more > 0 else ""
    if not activity.slots:
        return _card(f"Slots of {html.escape(model.name)}", told, "")
    key = _key(c2="kept from before", c3="read (prefill)", c1="written (decode)", c0="free")
    title = "Slots" if is_only else f"Slots of {html.escape(model.name)}"
    return _card(title, told, f'<ol class="slots">{cells}</ol>{rest}{key}')


def _slot(number: int, slot: SlotState, context: int) -> str:
    match slot.doing:
        case "prefill":
            doing, count = "prefill", f"{slot.reused + slot.prefilled:,} of {slot.prompt:,}"
        case "decode":
            doing, count = "decode", f"{slot.prompt + slot.made:,}"
        case _:
            doing, count = ("kept", f"{slot.reused:,}") if slot.reused else ("empty", "")
    ends = [slot.reused, slot.reused + slot.prefilled, slot.reused + slot.prefilled + slot.made]
    shares = ";".join(
        f"--{name}:{100 * end / context:.1f}%" for name, end in zip(("re", "pre", "de"), ends, strict=True)
    )
    return (
        f'<li class="slot {slot.doing}"><b>{number}</b><div class="col" style="{shares}"></div>'
        f"<span>{doing}</span><span>{count}</span></li>"
    )


def _memory(snapshot: Snapshot) -> str:
    held = [(model, model.memory) for model in snapshot.models if model.memory is not None]
    rows = [(model.name, (memory.weights, memory.cache, model.temporary)) for model, memory in held]
    sums = [sum(parts[i] for _, parts in rows) for i in range(3)]
    used, limit, is_host = snapshot.memory_used, snapshot.memory_limit, snapshot.device.endswith("CPU")
    if used is None or limit is None:
        is_warm = all(model.state in ("ready", "failed") for model in snapshot.models)
        told = "the models are in other processes" if is_warm else "known when all models are warm"
        whole = max(sum(sums), 1)
    elif is_host:
        told = f"this process uses {_bytes(used)} of {_bytes(limit)}; models hold {_bytes(sum(sums))}"
        whole = max(used, sum(sums))
    else:
        told, whole = f"{_bytes(used)} of {_bytes(limit)} in use on each device", limit
    label = ", ".join(
        f"{name} {_bytes(part)}" for name, part in zip(("weights", "cache", "temporaries"), sums, strict=True)
    )
    bar = f'<div class="mem" role="img" aria-label="{label}">{_parts(sums, whole)}</div>'
    largest = max((sum(parts) for _, parts in rows), default=1)
    lines = "".join(
        f'<div class="memrow"><b>{html.escape(name)}</b><div class="mem" aria-hidden="true">{_parts(parts, largest)}'
        f"</div><span>{_bytes(sum(parts))}</span></div>"
        for name, parts in rows
    )
    key = _key(c1="weights", c2="cache", c3="temporaries", c0="Python and libraries" if is_host else "free")
    note = '<p class="note">Counted before loading: a model that would not fit is refused by name.</p>'
    return _card("Memory", f"{html.escape(snapshot.device)} · {told}", f"{bar}{key}{lines}{note}", "memory")


def _parts(parts: Sequence[int], whole: int) -> str:
    return "".join(
        f'<i class="{name}" style="--w:{100 * part / whole:.1f}%"></i>'
        for name, part in zip(("c1", "c2", "c3"), parts, strict=True)
        if part
    )


def _key(**names: str) -> str:
    return f'<div class="key">{"".join(f"<span><i class={c}></i>{name}</span>" for c, name in names.items())}</div>'


def _ledger(model: ModelSnapshot) -> str:
    count = _count(len(model.programs), "program")
    head = f'<tr class="of"><th scope="rowgroup" colspan="5">{html.escape(model.name)} <span>{count}</span></th></tr>'
    return f"<tbody>{head}{''.join(map(_program, model.programs))}</tbody>"


def _program(report: ProgramReport) -> str:
    name, shape = named(report.name)
    trace, compiling = (f"{seconds:.2f} s" if seconds else "–" for seconds in (report.traced, report.compiling))
    tag = "tag" if report.source == "compiled" else "tag a"
    return (
        f'<tr><th scope="row">{html.escape(name)}</th><td class="shape">{html.escape(shape)}</td>'
        f'<td class="n trace">{trace}</td><td class="n">{compiling}</td>'
        f'<td class="from"><span class="{tag}">{report.source}</span></td></tr>'
    )


def named(name: str) -> tuple[str, str]:
    """A program's name and shape in words: "chat_decode_4x512" is "chat decode" and "4 slots, 512 positions"."""
    found = _NUMBERS.search(name)
    base = (name[: found.start()] if found else name).replace("_", " ")
    numbers = found[1].split("x") if found else []
    words = _SHAPES.get(base, "")
    if words.count("{}") == len(numbers) and numbers:
        filled = words.format(*(f"{int(number):,}" for number in numbers))
        return base, re.sub(r"\b1 (\w+)s\b", r"1 \1", filled)
    return base, " × ".join(numbers)


def _number(value: float) -> str:
    """Three digits at most: 207, 19.4, 0.12."""
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1024:.0f} KiB"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
