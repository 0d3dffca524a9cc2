"""The studio's mark, and icons of the page's own buttons, drawn by strokes in a square of 24."""

CROSS = '<path d="M6 6l12 12M18 6 6 18"/>'
SLIDERS = '<path d="M4 7h9M19 7h1M4 17h1M11 17h9"/><circle cx="16" cy="7" r="2.5"/><circle cx="8" cy="17" r="2.5"/>'


def icon(path: str) -> str:
    return f'<svg class="i" viewBox="0 0 24 24" aria-hidden="true">{path}</svg>'


def icon_button(name: str, path: str, attributes: str) -> str:
    """A button that shows only an icon; its name is for screen readers and in its tooltip."""
    return f'<button class="icon" type="button" {attributes} aria-label="{name}" title="{name}">{icon(path)}</button>'


_ROWS = ("100", "111", "101")


def mark(*, waving: bool = False) -> str:
    """The mark as SVG, in the colour of its text.

    Args:
        waving: whether a wave runs through the cells, as data does through the array: for what is being compiled.
    """
    cells = "".join(
        f'<rect{_attributes(row + column, cell, waving)} x="{1 + 8 * column}" y="{1 + 8 * row}" '
        'width="6.4" height="6.4" rx="1.7"/>'
        for row, line in enumerate(_ROWS)
        for column, cell in enumerate(line)
    )
    kind = "mark wave" if waving else "mark"
    return f'<svg class="{kind}" viewBox="0 0 24.4 24.4" fill="currentColor" aria-hidden="true">{cells}</svg>'


def _attributes(delay: int, cell: str, waving: bool) -> str:
    return f' style="--d:{delay}"' if waving else "" if cell == "1" else ' class="off"'
