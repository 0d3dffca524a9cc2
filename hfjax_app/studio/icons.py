"""Icons of the page's own buttons, drawn by strokes in a square of 24."""

CROSS = '<path d="M6 6l12 12M18 6 6 18"/>'
SLIDERS = '<path d="M4 7h9M19 7h1M4 17h1M11 17h9"/><circle cx="16" cy="7" r="2.5"/><circle cx="8" cy="17" r="2.5"/>'


def icon(path: str) -> str:
    return f'<svg class="i" viewBox="0 0 24 24" aria-hidden="true">{path}</svg>'


def icon_button(name: str, path: str, attributes: str) -> str:
    """A button that shows only an icon; its name is for screen readers and in its tooltip."""
    return f'<button class="icon" type="button" {attributes} aria-label="{name}" title="{name}">{icon(path)}</button>'
