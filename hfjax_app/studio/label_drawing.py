"""What a classifier says of a text, as HTML: the likeliest label, and a bar for each one, in its
colour, which is the same in every chart; and the words that speak for a label or against it.

Teal and a solid line mean for, orange and a dashed line against: what a colour means never depends on the label.
"""

from collections.abc import Mapping, Sequence
from html import escape

from hfjax_app.sentiment.bulk import NO_LABEL, UNCLASSIFIED, Word, WordRanking
from hfjax_app.sentiment.interface import Explanation

MOST_LABELS = 8  # of a model with more, the likeliest are shown

FAILED = '<div class="result none"><p class="note">This text was not classified.</p></div>'


def scores(
    scored: Mapping[str, float],
    *,
    said: Sequence[str] = (),
    note: str = "",
    explained: str | None = None,
    asks: bool = False,
) -> str:
    """The labels with their probabilities, those that apply large.

    Args:
        scored: the probability of each label.
        said: the labels that apply; none: the likeliest one.
        note: a remark, plain text.
        explained: the label whose words are shown.
        asks: whether a label is a button that asks for its words.
    """
    by_score = sorted(scored, key=scored.__getitem__, reverse=True)
    said = said or by_score[:1]
    colour = colours(list(scored))
    rows = "".join(
        _row(label, colour[label], scored[label], asks=asks, is_explained=label == explained)
        for label in (scored if len(scored) <= MOST_LABELS else by_score[:MOST_LABELS])
    )
    spoken = ", ".join(f"{label} {100 * scored[label]:.0f} %" for label in said)
    heading = ", ".join(f'<i class="{colour[label]}"></i>{escape(label)}' for label in said)
    return (
        f'<div class="result"><div class="verdict" data-say="{escape(spoken)}"><h3>{heading}</h3>'
        f'<span class="note">{escape(note)}</span></div>{_list(rows)}</div>'
    )


def no_scores(labels: Sequence[str], note: str) -> str:
    """The same before there is a text: empty bars."""
    colour = colours(labels)
    rows = "".join(_row(label, colour[label], None) for label in labels[:MOST_LABELS])
    return f'<div class="result none"><p class="note">{escape(note)}</p>{_list(rows)}</div>'


def _list(rows: str) -> str:
    return f'<ul class="probs">{rows}</ul>'


def _row(label: str, colour: str, probability: float | None, *, asks: bool = False, is_explained: bool = False) -> str:
    share = 0.0 if probability is None else probability
    percent = "–" if probability is None else f"{100 * share:.0f} %"
    bar = (
        f'<span class="name">{escape(label)}</span><span class="track" aria-hidden="true">'
        f'<i class="{colour}" style="--w:{100 * share:.1f}%"></i></span><b class="num">{percent}</b>'
    )
    if asks:
        pressed = "true" if is_explained else "false"
        title = f"Which words speak for {escape(label)}?"
        bar = (
            f'<button class="prob" type="button" data-label="{escape(label)}" aria-pressed="{pressed}" '
            f'title="{title}">{bar}</button>'
        )
    else:
        bar = f'<div class="prob">{bar}</div>'
    return f"<li>{bar}</li>"


_COLOURS = ("l1", "l2", "l4", "l5", "l6", "l7", "l8")  # of assets/tokens.css
_NEUTRAL = "l3"
# A label with one of these names has its colour in every model, whatever its place.
_MEANINGS = {
    **dict.fromkeys(("positive", "pos", "entailment", "joy"), "l1"),
    **dict.fromkeys(("negative", "neg", "contradiction", "anger"), "l2"),
    **dict.fromkeys(("neutral", "neu", "mixed", "other", "none", NO_LABEL, UNCLASSIFIED), _NEUTRAL),
}


def colours(labels: Sequence[str]) -> dict[str, str]:
    """Each label's CSS class. With more labels than colours, some share one."""
    named = {label: _MEANINGS[key] for label in labels if (key := label.strip().casefold()) in _MEANINGS}
    free = [colour for colour in _COLOURS if colour not in named.values()] or list(_COLOURS)
    others = [label for label in labels if label not in named]
    return named | {label: free[at % len(free)] for at, label in enumerate(others)}


WORDS_OF_A_TEXT = 6  # as bars
WORDS_OF_A_LIST = 12
_STRONGEST = 0.62  # opacity of the strongest word's colour: its text keeps a contrast of 4.5:1
_LINED = 0.1  # words with a smaller share of the strongest have no line, and are not read out as for or against
_RAMP = (0.62, 0.48, 0.32, 0.15)


def why(explanation: Explanation) -> str:
    """The text with each word in the colour of its contribution, a sentence on it, and the strongest words as bars."""
    ranking = WordRanking()
    ranking.add(explanation)
    words = ranking.strongest(WORDS_OF_A_TEXT)
    label = escape(explanation.label)
    return (
        f'<div class="why"><header><h3>What speaks for <q>{label}</q></h3>{_scale()}</header>'
        f'<div class="why-parts"><div>{_text(explanation)}<p class="sum">{_sum(explanation, words)}</p></div>'
        f"<div>{bars(words, f'The words that matter most to {explanation.label}')}"
        f'<p class="note">How far each word moves the score of {label}.</p></div></div></div>'
    )


def bars(words: Sequence[Word], caption: str, *, of_many: bool = False) -> str:
    """A table of words with bars to the right (for) and to the left (against).

    Args:
        words: in the order in which they are drawn.
        caption: of the table, for screen readers.
        of_many: whether to draw their weights in many texts, and say in how many each word is.
    """
    values = [word.weight if of_many else word.mean for word in words]
    largest = max(map(abs, values), default=0.0) or 1.0
    rows = "".join(
        _bar(word.text, value, largest, f"{word.texts:,} ×" if of_many else "")
        for word, value in zip(words, values, strict=True)
    )
    head = "<th>Word</th><th>For or against</th><th>How far</th>" + ("<th>Texts</th>" if of_many else "")
    columns = '<col class="word"><col><col class="figure">' + ('<col class="figure">' if of_many else "")
    return (
        f'<table class="bars"><caption class="sr">{escape(caption)}</caption><colgroup>{columns}</colgroup>'
        f'<thead class="sr"><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    )


def _scale() -> str:
    against = "".join(f'<i class="n" style="--a:{share}"></i>' for share in _RAMP)
    support = "".join(f'<i class="p" style="--a:{share}"></i>' for share in reversed(_RAMP))
    return (
        f'<p class="scale"><span class="n">against</span><span class="ramp" aria-hidden="true">{against}<i></i>'
        f'{support}</span><span class="p">for</span></p>'
    )


def _text(explanation: Explanation) -> str:
    largest = max((abs(value) for _, value in explanation.pieces if value is not None), default=0.0) or 1.0
    return f'<p class="words">{"".join(_piece(piece, value, largest) for piece, value in explanation.pieces)}</p>'


def _piece(piece: str, value: float | None, largest: float) -> str:
    text = escape(piece)
    if value is None:
        return f'<span class="cut">{text}</span>' if piece.strip() else text
    share = abs(value) / largest
    sign, said = ("p", "for") if value > 0 else ("n", "against")
    lined = share >= _LINED
    spoken = f'<span class="sr"> ({said})</span>' if lined else ""
    return (
        f'<span class="{sign}{" lined" if lined else ""}" style="--a:{_STRONGEST * share:.2f}" title="{value:+.2f}">'
        f"{text}{spoken}</span>"
    )


def _sum(explanation: Explanation, words: Sequence[Word]) -> str:
    """What the strongest words and all words together do, as a sentence."""
    label = escape(explanation.label)
    best = next((word for word in words if word.mean > 0), None)
    worst = next((word for word in words if word.mean < 0), None)
    parts = []
    if best is not None:
        parts.append(f'<b class="p">{escape(best.text)}</b> speaks most for {label}')
    if worst is not None:
        verb = "most against it" if parts else f"speaks most against {label}"
        parts.append(f'<b class="n">{escape(worst.text)}</b> {verb}')
    change = explanation.logit - explanation.baseline
    together = "for" if change > 0 else "against"
    return f"{', '.join(parts)}{'. ' if parts else ''}All words together speak {together} it ({_signed(change)})."


def _bar(word: str, value: float, largest: float, count: str) -> str:
    sign, said = ("p", "for") if value > 0 else ("n", "against")
    counted = f'<td class="count">{count}</td>' if count else ""
    return (
        f'<tr><th scope="row">{escape(word)}</th><td class="ax"><span class="sr">{said}</span>'
        f'<i class="{sign}" style="--w:{50 * abs(value) / largest:.1f}%"></i></td>'
        f'<td class="num">{_signed(value)}</td>{counted}</tr>'
    )


def _signed(value: float) -> str:
    digits = 2 if abs(value) >= 0.095 else 3
    return f"{value:+.{digits}f}".replace("-", "−")
