"""What a classifier says of a text, as HTML: the likeliest label, and a bar for each one, in its
colour, which is the same in every chart."""

from collections.abc import Mapping, Sequence
from html import escape

from hfjax_app.sentiment.bulk import NO_LABEL, UNCLASSIFIED

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
