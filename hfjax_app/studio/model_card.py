"""Where a model's card is: its page on the hub, or for an embedded model a sheet of this page."""

import re
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from hfjax_app.backends import Backend
from hfjax_app.embedded import MODELS, resolve

_HUB_ID = re.compile(r"([\w.-]+/[\w.-]+)(@[\w./-]+)?")
_HEADING = re.compile(r"(</?h)([1-4])>")


def model_card(backend: Backend[Any], sheet_id: str) -> tuple[str, str]:
    """A link to the card, and the sheet that it opens; both empty for a folder.

    Args:
        backend: its model is an embedded model's name, a folder, or a hub id.
        sheet_id: unique on the page.
    """
    if backend.model not in MODELS:
        found = _HUB_ID.fullmatch(backend.model)
        if found is None or Path(backend.model).exists():
            return "", ""
        address = f"https://huggingface.co/{found[1]}"
        return f'<a class="link" href="{address}" target="_blank" rel="noreferrer">Its model card</a>', ""
    text = (Path(resolve(backend.model)) / "README.md").read_text(encoding="utf-8")
    card = _HEADING.sub(_lower, MarkdownIt("commonmark").enable("table").render(text.split("---", 2)[2]))
    return (
        f'<button type="button" class="link" popovertarget="{sheet_id}">Its model card</button>',
        f'<div class="sheet" id="{sheet_id}" popover>{card}</div>',
    )


def _lower(heading: re.Match[str]) -> str:
    """A heading of the card as one below the page's own."""
    return f"{heading[1]}{int(heading[2]) + 1}>"
