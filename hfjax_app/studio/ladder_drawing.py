"""The ladder's kept result as a bar chart beside the blog posts' figures, with a table behind it."""

import html
import math

from hfjax_app.ladder_result import PARTS, LadderPart, LadderResult, PartResult, Rung, RungResult, in_words

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
