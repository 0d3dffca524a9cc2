"""The results of a list as HTML: how its labels fall, how sure the model is, a confusion matrix, and the rows."""

from collections.abc import Sequence
from html import escape

from hfjax_app.sentiment.bulk import BINS, NO_LABEL, UNCLASSIFIED, Results, Row
from hfjax_app.sentiment.own_labels import Confusion, Reading
from hfjax_app.studio.label_drawing import colours

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
