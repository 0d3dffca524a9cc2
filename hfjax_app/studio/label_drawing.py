"""What a classifier says of a text, as HTML: the likeliest label, and a bar for each one, in its
colour, which is the same in every chart; and the words that speak for a label or against it.

Teal and a solid line mean for, orange and a dashed line against: what a colour means never depends on the label.

Of a list: how its labels fall, how sure the model is, a confusion matrix, and the rows.
"""

from collections.abc import Mapping, Sequence
from html import escape

from hfjax_app.sentiment.bulk import BINS, NO_LABEL, UNCLASSIFIED, Results, Row, Word, WordRanking
from hfjax_app.sentiment.interface import Explanation
from hfjax_app.sentiment.own_labels import Confusion, Reading

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


SHOWN_CHARACTERS = 300
MOST_LABEL_COLUMNS = 4  # of the table of rows: more would leave no space for the texts
_EXAMPLES_OF_NUMBERS = 6
_EXAMPLES = 3  # of values that are no labels
_DEEPEST = 0.5  # opacity of a cell that has all texts of its row: its figure keeps a contrast of 4.5:1


def shares(results: Results) -> str:
    """How many texts have each label, as one bar with its key."""
    names = [*results.labels, *(name for name in (NO_LABEL, UNCLASSIFIED) if results.counts[name])]
    colour, whole = colours(names), max(sum(results.counts[name] for name in names), 1)
    parts = "".join(
        f'<i class="{colour[name]}" style="--w:{100 * results.counts[name] / whole:.2f}%"></i>'
        for name in names
        if results.counts[name]
    )
    key = "".join(
        f'<li><i class="{colour[name]}"></i>{escape(name)} <b>{results.counts[name]:,}</b>'
        f"<span>{100 * results.counts[name] / whole:.0f} %</span></li>"
        for name in names
    )
    return (
        f'<header><h3>How they fall</h3></header><div class="share" aria-hidden="true">{parts}</div>'
        f'<ul class="key num">{key}</ul>{_certainty(results)}'
    )


def _certainty(results: Results) -> str:
    """A column of rows for each range of the likeliest label's probability."""
    largest, width = max(*results.confidence, 1), 100 // BINS
    told = ", ".join(
        f"{width * at} to {width * (at + 1)} %: {count:,}" for at, count in enumerate(results.confidence) if count
    )
    columns = "".join(
        f'<div title="{width * at}–{width * (at + 1)} %: {count:,}"><b>{f"{count:,}" if count else ""}</b>'
        f'<i style="--h:{100 * count / largest:.1f}%"></i><span>{width * at}</span></div>'
        for at, count in enumerate(results.confidence)
    )
    return (
        f'<h4>How sure the model is</h4><div class="certainty num" role="img" aria-label="Texts by the probability of '
        f'their label. {told}">{columns}</div><p class="note">Texts by the probability of their label, in per cent.</p>'
    )


def agreement(compared: Confusion) -> str:
    """The confusion matrix, with recall and precision of each label."""
    column = f"<b>{escape(compared.column)}</b>"
    if not compared.texts:
        told = f"No cell of {column} is a label of this model{_others(compared)}"
        return _beside("", f"<p>{told}. A label's name, its number, or the beginning of its name would be.</p>")
    labels = compared.labels
    head = "".join(f'<th scope="col">{escape(label)}</th>' for label in labels)
    rows = "".join(_matrix_row(compared, label) for label in labels)
    precisions = "".join(f"<td>{_percent(compared.precision(label))}</td>" for label in labels)
    percent = f'<b class="num">{100 * compared.right / compared.texts:.1f} %</b>'
    return _beside(
        f"<p>{percent} agree: {compared.right:,} of {compared.texts:,} texts</p>",
        '<div class="beside"><div class="sideways" tabindex="0" role="region" aria-label="Confusion matrix">'
        '<table class="confusion num"><caption class="sr">Your labels in rows, the model’s in columns</caption>'
        f'<thead><tr><td></td>{head}<th scope="col" class="of">recall</th></tr></thead><tbody>{rows}</tbody>'
        f'<tfoot><tr><th scope="row" class="of">precision</th>{precisions}<td></td></tr></tfoot></table></div>'
        f'<ul class="note"><li>Rows are your labels, from the column {column}; columns are the model’s.</li>'
        "<li>Recall: of your texts of a label, how many the model found.</li><li>Precision: of the texts to which the "
        f"model gave a label, how many have it from you too.</li>{_read(compared)}</ul></div>",
    )


def _beside(note: str, content: str) -> str:
    return f'<section class="card"><header><h3>Beside your labels</h3>{note}</header>{content}</section>'


def _matrix_row(compared: Confusion, label: str) -> str:
    counts = [compared.count(label, other) for other in compared.labels]
    whole = sum(counts)
    cells = "".join(
        f'<td class="{"right" if other == label else "wrong"}" style="--a:{_DEEPEST * count / max(whole, 1):.2f}">'
        f"<b>{count:,}</b>{f'<span>{_percent(count / whole)}</span>' if count else ''}</td>"
        for other, count in zip(compared.labels, counts, strict=True)
    )
    return f'<tr><th scope="row">{escape(label)}</th>{cells}<td>{_percent(compared.recall(label))}</td></tr>'


def _read(compared: Confusion) -> str:
    """How numbers were read, and what was left out."""
    numbers = meaning(compared.reading)
    left = sum(compared.others.values())
    out = f"<li>{left:,} rows without such a label are left out{_others(compared)}.</li>" if left else ""
    return f"{f'<li>Numbers are read {escape(numbers)}.</li>' if numbers else ''}{out}"


def meaning(reading: Reading) -> str:
    """How numbers are read, in words; empty: there are none."""
    numbers = sorted(reading.labels.items(), key=lambda pair: float(pair[0]))
    named = ", ".join(f"{number} is {label}" for number, label in numbers[:_EXAMPLES_OF_NUMBERS])
    return f"{reading.note}: {named}{', …' if len(numbers) > _EXAMPLES_OF_NUMBERS else ''}" if numbers else ""


def asks(column: str) -> str:
    """In the place of the matrix, where it is not certain what the numbers of a column mean."""
    told = f"It is not certain what the numbers in <b>{escape(column)}</b> mean: choose it above."
    return _beside("", f'<p data-say="Choose what the numbers mean">{told}</p>')


def _others(compared: Confusion) -> str:
    """Values that are no labels, in parentheses."""
    named = [text for text, _ in compared.others.most_common(_EXAMPLES + 1) if text][:_EXAMPLES]
    quoted = ", ".join(f"“{escape(text[:40])}”" for text in named)
    return f" ({quoted}{', …' if len(compared.others) > len(named) else ''})" if named else ""


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def table(rows: Sequence[Row], labels: Sequence[str], compared: Confusion | None = None) -> str:
    """Rows with their labels; with few labels, the probability of each one as a shade of its colour.

    Args:
        rows: of a list.
        labels: the classifier's.
        compared: the same list beside its own labels, which have a column then.
    """
    colour = colours([*labels, NO_LABEL, UNCLASSIFIED])
    shaded = labels if len(labels) <= MOST_LABEL_COLUMNS else ()
    head = "".join(f'<th scope="col" class="h">{escape(label)}</th>' for label in shaded)
    body = "".join(_table_row(row, colour, shaded, compared) for row in rows)
    yours = "" if compared is None else '<th scope="col">Yours</th>'
    return (
        '<div class="sideways" tabindex="0" role="region" aria-label="Rows"><table class="rows num"><thead><tr>'
        '<th scope="col" class="n">Row</th><th scope="col">Text</th><th scope="col">Label</th>'
        f"{yours}{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _table_row(row: Row, colour: dict[str, str], shaded: Sequence[str], compared: Confusion | None) -> str:
    text = row.text if len(row.text) <= SHOWN_CHARACTERS else f"{row.text[:SHOWN_CHARACTERS]} …"
    note = f'<span class="note">{escape(row.note)}</span>' if row.note else ""
    label = "".join(_named(name, colour) for name in row.labels)
    if row.prediction is None:
        cells = '<td class="h"></td>' * len(shaded)
    else:
        scores = row.prediction.scores
        label += "" if shaded else f"<span>{_percent(row.prediction.probability)}</span>"
        cells = "".join(
            f'<td class="h"><span class="{colour[name]}" style="--a:{_DEEPEST * scores[name]:.2f}">'
            f"{_percent(scores[name])}</span></td>"
            for name in shaded
        )
    yours = ""
    if compared is not None:
        label_in_file = compared.of_rows.get(row.number)
        other = ' class="other"' if compared.differs(row) else ""
        yours = f"<td{other}>{'' if label_in_file is None else _named(label_in_file, colour)}</td>"
    text = f'<td class="text">{escape(text)}{note}</td>'
    return f'<tr><td class="n">{row.number:,}</td>{text}<td>{label}</td>{yours}{cells}</tr>'


def _named(label: str, colour: dict[str, str]) -> str:
    return f'<span class="of"><i class="{colour[label]}"></i>{escape(label)}</span>'
