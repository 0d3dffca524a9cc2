"""The studio's mark: an *h* in an array of three by three cells, as a TPU's array of multiply units is drawn."""

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
