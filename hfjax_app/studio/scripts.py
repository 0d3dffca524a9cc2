"""Scripts that run before Gradio's own.

frames.js leaves a visitor's processor alone, clipboard.js what they copy; pictures.js makes what they send smaller;
kept.js keeps what they said and made when they reload the page.

What Gradio takes as `head` comes after its modules have kept the browser's functions for themselves.
"""

from pathlib import Path

from gradio.routes import templates
from jinja2.ext import Extension

_SCRIPTS = "".join(
    f"<script>{{% raw %}}{Path(__file__).with_name(name).read_text(encoding='utf-8')}{{% endraw %}}</script>"
    for name in ("frames.js", "clipboard.js", "pictures.js", "kept.js")
)


class _First(Extension):
    """Puts the scripts first into the head of Gradio's pages, whose templates Jinja fills in."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        return source.replace("<head>", f"<head>{_SCRIPTS}", 1)


def run_first() -> None:
    """On every page that this process serves from now on."""
    templates.env.add_extension(_First)
